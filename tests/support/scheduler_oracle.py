"""Whether a plan is one that the scheduler's rules allow: who runs, which chunks, and that nothing more would fit."""

from collections import Counter
from dataclasses import dataclass

from jaxgen.core.sequence import Chunk, Restore, Sequence, SequenceStatus
from jaxgen.core.step_plan import StepPlan
from jaxgen.scheduling.admission import ADMISSION_WINDOW
from tests.support.scheduler_book import Book, level
from tests.support.window_checks import window_shortens_hit, windows_lack_room


@dataclass(frozen=True)
class Before:
    """What the book said before a plan was made."""

    running: list[Sequence]
    waiting: list[Sequence]
    progress: dict[Sequence, tuple[int, int]]
    """Of each sequence: its tokens computed, and its tokens."""
    deferred: set[Sequence]
    """Those under a grammar whose last token has not arrived."""
    preemptions: int
    asked: set[Sequence]
    """Those waiting that were found to want what another one restores."""
    awaiting: set[Sequence]
    """Those of them for which it is still coming."""


class PlanOracle:
    """Of one scheduler: it follows its plans from the first."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._queries = self._hits = 0
        self._awaited: dict[int, Restore] = {}
        """By arrival: what another restores, and a waiting sequence waits for."""
        self._overtaken: Counter[int] = Counter()
        """By arrival: how often a waiting sequence has been."""

    def before(self) -> Before:
        running, waiting = self._book.running(), self._book.waiting()
        asked = {sequence: sequence.blocks.awaited for sequence in waiting if sequence.blocks.awaited is not None}
        return Before(
            running,
            waiting,
            {sequence: (sequence.num_computed, sequence.num_tokens) for sequence in self._book.live.values()},
            {sequence for sequence in running if sequence.constraint is not None and sequence.num_pending},
            self._book.scheduler.preemptions,
            set(asked),
            {sequence for sequence, restore in asked.items() if restore.is_under_way},
        )

    def check(self, plan: StepPlan, before: Before) -> None:
        book = self._book
        run = book.running()
        preempted = [sequence for sequence in before.running if sequence.status is SequenceStatus.WAITING]
        admitted = [sequence for sequence in before.waiting if sequence in run]
        if book.plain:
            assert list(plan.admitted) == admitted
        assert sorted(plan.admitted, key=id) == sorted(admitted, key=id)
        self._check_who_runs(before, run, admitted, preempted)
        progress = before.progress | {s: (self._check_hit(s, plan), len(s.tokens)) for s in admitted}
        progress |= {s: (self._check_found_later(s, plan, before), len(s.tokens)) for s in plan.relocated}
        self._check_copies(plan)
        self._check_states(plan)
        assert (book.scheduler.counters.prefix_queries, book.scheduler.counters.prefix_hits) == (
            self._queries,
            self._hits,
        )
        self._check_chunks(plan, progress)
        self._check_background(plan)
        self._check_idle(plan, before, run, progress)
        still = [s for s in before.waiting if s not in run and not self._waits_for_another(s, before)]
        if not book.plain:
            return  # shares and promises may keep somebody back
        self._check_overtaking(still, admitted)
        if plan.num_tokens < book.config.token_budget and not preempted and book.most_prompt_tokens is None:
            self._check_nothing_more_fits(plan, run, still)

    def _check_who_runs(
        self, before: Before, run: list[Sequence], admitted: list[Sequence], preempted: list[Sequence]
    ) -> None:
        ending = self._book.ending()
        for sequence in before.running:
            # Whose last token is planned leaves, and nobody else does but those preempted.
            computed, tokens = before.progress[sequence]
            assert (sequence in ending) is (tokens == sequence.max_length and computed >= sequence.max_cached)
        assert self._book.scheduler.preemptions == before.preemptions + len(preempted)
        stayed = [sequence for sequence in before.running if sequence not in ending]
        may_preempt = self._book.scheduler.policy.may_preempt
        displaced = {gone for gone in preempted if any(may_preempt(other, gone) for other in before.waiting)}
        if not self._book.plain:
            displaced |= self._gave_rows(before, stayed, preempted)
        if stayed and stayed[0] not in displaced:
            assert stayed[0] in run
        # Who goes is behind who stays, and behind who comes; but a tenant's only row stays before others' further ones.
        kept = run
        if not self._book.plain:
            rows = Counter((s.request.background, s.request.tenant) for s in run)
            kept = [s for s in run if s in before.running and rows[s.request.background, s.request.tenant] > 1]
        gone = preempted if self._book.plain else set(preempted) - displaced
        assert all(one.standing.order_key > other.standing.order_key for one in gone for other in kept)
        self._book.seen["gave a later one its block"] += any(
            one.standing.order_key < other.standing.order_key for one in set(preempted) - displaced for other in run
        )
        self._book.seen["displaced for a promise"] += any(not s.request.background for s in displaced)
        self._book.seen["preempted for an earlier level"] += bool(admitted and preempted)

    def _gave_rows(self, before: Before, stayed: list[Sequence], preempted: list[Sequence]) -> set[Sequence]:
        """Those that may have been preempted for a tenant without a row: none of a tenant's only one of a kind."""
        had = Counter((s.request.background, s.request.tenant) for s in stayed)
        lost = Counter((s.request.background, s.request.tenant) for s in preempted)
        may_give: set[Sequence] = set()
        for kind in (False, True):
            if not any(s.request.background is kind and not had[kind, s.request.tenant] for s in before.waiting):
                continue
            may_give |= {s for s in preempted if s.request.background > kind}
            may_give |= {
                s
                for s in preempted
                if s.request.background is kind and had[kind, s.request.tenant] > lost[kind, s.request.tenant]
            }
            self._book.seen["gave a background row" if kind else "gave a row"] += bool(may_give)
        return may_give

    def _check_hit(self, sequence: Sequence, plan: StepPlan) -> int:
        """Where an admitted sequence begins; what is found there, the device checks when it reads."""
        book = self._book
        chunks = [chunk for chunk in plan.chunks if chunk.sequence is sequence]
        if chunks:
            start = chunks[0].start
            assert sequence.num_pending == chunks[0].samples
        else:
            assert sequence.blocks.restore is not None
            start = sequence.num_computed
        copied = [copy for copy in plan.copies if copy.target in sequence.blocks.table]
        assert (start % book.cache.block_size > 0) <= (len(copied) == 1)
        assert start < len(sequence.tokens)
        if book.config.prefix_caching and sequence.params.prompt_logprobs is None:
            self._queries += len(sequence.tokens)
            self._hits += start
        else:
            assert start == 0
            assert sequence.blocks.restore is None
        again = sequence.request_id in book.first_hits
        assert sequence.blocks.num_cached == book.first_hits.setdefault(sequence.request_id, start)
        book.seen["found again after preemption" if again else "found"] += start > 0
        book.seen["restored beside computing"] += bool(chunks) and sequence.blocks.restore is not None
        return start

    def _check_found_later(self, sequence: Sequence, plan: StepPlan, before: Before) -> int:
        """Where a sequence goes on that ran before and got blocks of others; what they hold, the device checks."""
        book, (computed, tokens) = self._book, before.progress[sequence]
        (start,) = [chunk.start for chunk in plan.chunks if chunk.sequence is sequence]
        assert computed < start < tokens == len(sequence.tokens)
        assert start % book.cache.block_size == 0
        self._hits += start - computed
        if sequence.standing.num_preemptions == 0:
            book.first_hits[sequence.request_id] += start - computed
            assert sequence.blocks.num_cached == book.first_hits[sequence.request_id]
        book.seen["found while it ran"] += 1
        return start

    def _check_copies(self, plan: StepPlan) -> None:
        """Each is for one sequence that begins, and none is of a block that the same plan writes first."""
        book = self._book
        assert not plan.copies or book.copies_blocks
        targets = [copy.target for copy in plan.copies]
        assert len(set(targets)) == len(targets)
        for copy in plan.copies:
            assert copy.source != copy.target
            owners = [s for s in plan.admitted if copy.target in s.blocks.table]  # later ones share it once it is full
            assert owners[0].blocks.restore is None
            book.seen["copied from one that runs"] += book.scheduler.pool.num_owners(copy.source) > 0
            book.seen["copied a beginning"] += 1

    def _check_states(self, plan: StepPlan) -> None:
        """Each row gets one state at most, and each place for a snapshot one; only full blocks are followed by one."""
        book = self._book
        places = range(book.cache.num_snapshots or 0)
        ends = {chunk.sequence.row: chunk.end for chunk in plan.chunks}
        assert len({copy.row for copy in plan.state_loads}) == len(plan.state_loads)
        assert len({copy.snapshot for copy in plan.snapshots}) == len(plan.snapshots)
        assert all(copy.snapshot in places for copy in (*plan.state_loads, *plan.snapshots))
        assert all(ends[copy.row] % book.cache.block_size == 0 for copy in plan.snapshots)
        book.seen["loaded a state"] += bool(plan.state_loads)
        book.seen["took a snapshot"] += bool(plan.snapshots)
        book.seen["evicted a snapshot"] += book.scheduler.counters.snapshots_evicted > 0
        book.seen["computed again for a state"] += book.scheduler.counters.state_recomputed_tokens > 0

    def _check_chunks(self, plan: StepPlan, progress: dict[Sequence, tuple[int, int]]) -> None:
        book = self._book
        assert plan.num_tokens == sum(chunk.length for chunk in plan.chunks) <= book.config.token_budget
        assert len({chunk.sequence for chunk in plan.chunks}) == len(plan.chunks) <= book.config.max_num_seqs
        assert [chunk.length > 1 for chunk in plan.chunks] == sorted(chunk.length > 1 for chunk in plan.chunks)
        assert plan.num_samples <= book.config.max_num_seqs
        for chunk in plan.chunks:
            sequence, end = chunk.sequence, chunk.start + chunk.num_known
            computed, tokens = progress[sequence]
            assert (chunk.start, chunk.end) == (computed, end + len(chunk.drafts))
            self._check_drafts(chunk, plan)
            if sequence.num_computed != end:  # what comes next has come from the host
                assert book.host
                assert sequence.num_computed in {restored for _, restored in book.arrived[sequence]}
            assert chunk.start < end <= tokens
            assert chunk.samples is (end == tokens and sequence.params.max_tokens > 0)
            assert sequence.num_tokens == tokens + chunk.samples
            held = len(sequence.blocks.table)
            assert held == book.blocks(tokens) or (sequence.num_forced and book.blocks(end) <= held)
            book.seen["forced tokens in a chunk"] += chunk.num_known > 1 >= tokens - computed - sequence.num_forced

    def _check_drafts(self, chunk: Chunk, plan: StepPlan) -> None:
        """They are for decodes alone, in their blocks, and never more than a sequence may still have."""
        sequence, size = chunk.sequence, self._book.cache.block_size
        if not chunk.drafts:
            return
        assert plan.decodes_only
        assert chunk.samples
        assert chunk.start // size == (chunk.end - 1) // size
        assert chunk.end < sequence.max_length
        assert sequence.constraint is None
        online = any(not other.sequence.request.background for other in plan.chunks)
        assert not (online and sequence.request.background)

    def _check_background(self, plan: StepPlan) -> None:
        """It has what is left, in its bounds, and makes no step wide that would be narrow."""
        book = self._book
        online = [chunk for chunk in plan.chunks if not chunk.sequence.request.background]
        background = [chunk for chunk in plan.chunks if chunk.sequence.request.background]
        assert not (background and book.background_is_held())
        if not online or not background:
            return
        book.seen["both classes"] += 1
        if book.config.background_tokens is not None:
            assert sum(chunk.length for chunk in background) <= book.config.background_tokens
        if book.narrow and all(chunk.length == 1 for chunk in online):
            book.seen["narrow with background"] += 1
            assert plan.decodes_only

    def _check_idle(
        self, plan: StepPlan, before: Before, run: list[Sequence], progress: dict[Sequence, tuple[int, int]]
    ) -> None:
        """Who runs has a chunk, or waits for a token, for the host, or for those before it."""
        book = self._book
        computed = {chunk.sequence for chunk in plan.chunks}
        deferred = before.deferred & set(run)
        book.seen["deferred"] += bool(deferred)
        book.seen["all deferred"] += bool(deferred) and not plan.chunks
        assert not deferred & computed
        assert set(plan.idle) == set(run) - computed
        idle = {s for s in run if not s.request.background} - computed - deferred
        stalled = {s for s in run if s.blocks.restore is not None and progress[s][0] == s.blocks.restore.start}
        assert {s for s in stalled if not s.request.background} <= idle
        book.seen["stalled"] += bool(stalled)
        self._check_passed_over(plan, idle - stalled, progress)
        pending = any(sequence.num_pending for sequence in before.waiting)  # preempted by a plan without chunks
        assert plan.chunks or stalled or deferred or pending or not book.has_work()

    def _check_passed_over(
        self, plan: StepPlan, idle: set[Sequence], progress: dict[Sequence, tuple[int, int]]
    ) -> None:
        """Who decodes never is; prompts are for those before them, which take all the step."""
        book = self._book
        assert all(progress[s][1] - progress[s][0] > 1 + s.num_forced for s in idle)
        online = [chunk for chunk in plan.chunks if not chunk.sequence.request.background]
        pieces = [c for c in online if progress[c.sequence][1] - progress[c.sequence][0] > 1 + c.sequence.num_forced]
        prompts = [c.sequence for c in pieces]
        most = book.most_prompt_tokens
        assert most is None or sum(c.length for c in pieces) <= most
        book.seen["filled less"] += most is not None and sum(c.length for c in pieces) == most
        if idle and book.plain and most is None:
            assert sum(chunk.length for chunk in online) == book.config.token_budget
        if book.plain:
            assert all(other.standing.order_key < s.standing.order_key for s in idle for other in prompts)
        book.seen["passed over"] += bool(idle)

    def _waits_for_another(self, sequence: Sequence, before: Before) -> bool:
        """What it wants from the host comes for one that runs, begins with the same, and that it waits for once; or did
        when it was asked, and that one has been preempted since, for the same plan."""
        awaited = sequence.blocks.awaited
        if awaited is None:
            return False
        assert self._awaited.setdefault(sequence.arrival, awaited) is awaited
        if not awaited.is_under_way:
            return sequence in before.awaiting or sequence not in before.asked
        other, first = awaited.sequence, self._book.cache.block_size
        assert other.status is SequenceStatus.RUNNING
        assert (other.request.cache_salt, other.tokens[:first]) == (
            sequence.request.cache_salt,
            sequence.tokens[:first],
        )
        self._book.seen["waited for another's"] += 1
        return True

    def _check_overtaking(self, still: list[Sequence], admitted: list[Sequence]) -> None:
        bound = self._book.max_overtaken
        for sequence in admitted:
            self._overtaken.pop(sequence.arrival, None)
            self._awaited.pop(sequence.arrival, None)
        for sequence in still:
            self._overtaken[sequence.arrival] += sum(
                other.standing.order_key > sequence.standing.order_key for other in admitted
            )
            assert self._overtaken[sequence.arrival] <= bound
            self._book.seen["at the bound"] += self._overtaken[sequence.arrival] == bound > 0

    def _would_not_fit_without(self, lower: list[Sequence], run: list[Sequence], newcomer: Sequence) -> bool:
        """Whether a newcomer would lack blocks also if those of a later level had given theirs back."""
        book, pool = self._book, self._book.scheduler.pool
        held = Counter(block for sequence in lower for block in sequence.blocks.table)
        freed = sum(pool.num_owners(block) == owners for block, owners in held.items())
        staying = [sequence for sequence in run if sequence not in lower]
        growing = sum(book.blocks(sequence.max_cached) > len(sequence.blocks.table) for sequence in staying)
        needed = book.blocks(len(newcomer.tokens))
        lacks = needed + growing + (book.blocks(newcomer.max_cached) > needed) > pool.num_free + freed
        return lacks or windows_lack_room(book, [*staying, newcomer])

    def _check_nothing_more_fits(self, plan: StepPlan, run: list[Sequence], still: list[Sequence]) -> None:
        """Nothing that runs could take more; who waits has no row, no room, or may not overtake once more."""
        book = self._book
        bounded = book.background_is_bounded()
        any_cut = False
        for chunk in plan.chunks:
            if bounded and chunk.sequence.request.background:
                continue
            restore = chunk.sequence.blocks.restore
            ends = {restore.start} if restore is not None else {start for start, _ in book.arrived[chunk.sequence]}
            whole = chunk.samples or chunk.end == chunk.sequence.num_tokens or chunk.end in ends
            cut = bool(book.cache.num_snapshots) and not whole and chunk.end % book.cache.block_size == 0
            any_cut |= cut
            assert cut or whole or chunk.end >= chunk.sequence.num_tokens - chunk.sequence.num_forced
        if (
            not still
            or still[0].num_pending
            or (still[0].request.background and (bounded or not book.waiting()[0].request.background))
            or plan.relocated  # its own blocks were freed after the others had been refused
        ):
            return
        # Who sits out under a grammar needs no block now, but is counted as if it did.
        sits_out = any(sequence.constraint is not None for sequence in plan.idle)
        # Decodes of the plan may have taken a block of a window, without which a block found before is not shared.
        unshared = window_shortens_hit(book, still[0])
        if not (plan.admitted or any_cut or sits_out or unshared):  # else they left budget, or blocks, not counted on
            lower = [sequence for sequence in run if level(sequence) > level(still[0])]
            assert not lower or self._would_not_fit_without(lower, run, still[0])
            book.seen["not preempted in vain"] += bool(lower)
        if len(run) == book.config.max_num_seqs:
            return
        growing = sum(book.blocks(sequence.max_cached) > len(sequence.blocks.table) for sequence in run)
        for sequence in still[:ADMISSION_WINDOW]:
            if level(sequence) != level(still[0]):
                break
            needed = book.blocks(len(sequence.tokens))
            may_grow = book.blocks(sequence.max_cached) > needed
            lacks = needed + growing + may_grow > book.scheduler.pool.num_free
            lacks_window = windows_lack_room(book, [*run, sequence])
            assert lacks or lacks_window
            book.seen["no room in a window"] += lacks_window and not lacks
            if self._overtaken[sequence.arrival] == book.max_overtaken:
                break
