"""Any order of arrivals, plans, results, aborts and failures, on pools so small that preemption is common.

The device is a dict from slot to what was last written there: the salt and all tokens up to the one whose K and V it
holds. It runs a plan when it is made, from what the plan and the admitted sequences said then, and knows the tokens it
sampled before the host does. The next token is a hash of what a sequence's block table leads to. So a block with two
writers, a hit on other tokens or another salt, a prompt not computed anew, or a token computed twice shows.

There may be a host store behind the pool: what a plan saves is read before the plan runs, what it restores is written
at any time after, unless it was cancelled, and any copy may take long or fail. Blocks have layer inputs too: in each
slot those last computed or projected there, which a copy of K and V does not bring; they are saved only if its own.
"""

from collections import Counter, defaultdict
from dataclasses import replace
from typing import ClassVar, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jaxgen.config import CacheConfig, SchedulerConfig
from jaxgen.grammar import GrammarState
from jaxgen.offload.host_store import HostBlock, HostStore
from jaxgen.offload.tier import OffloadTier, Split
from jaxgen.request import FinishReason, RequestRefusedError
from jaxgen.scheduler import ADMISSION_WINDOW, Scheduler
from jaxgen.sequence import Restore, Sequence, SequenceStatus
from jaxgen.step_plan import Outcome, StepPlan
from tests.scheduler_world import ARRIVALS, EOS, Arrival, Device, Host, full_recomputation

GRAMMAR = cast(GrammarState, object())
"""The scheduler asks whether there is one, and no more."""


class SchedulerMachine(RuleBasedStateMachine):
    """A caller, a device, and a book of who should hold what."""

    seen: ClassVar[Counter[str]] = Counter()
    host_blocks: ClassVar[tuple[int, ...]] = (0,)

    @initialize(
        block_size=st.integers(1, 2) | st.integers(1, 4),
        num_blocks=st.integers(6, 12) | st.integers(1, 12),
        token_budget=st.integers(4, 16) | st.integers(1, 16),
        rows=st.integers(3, 6) | st.integers(1, 6),
        extra_len=st.integers(-2, 2),
        max_overtaken=st.integers(0, 3),
        prefix_caching=st.sampled_from([True, True, True, False]),
        host_size=st.integers(0, 3),
        most_saving=st.integers(1, 4),
        recomputed=st.integers(0, 2),
        projected=st.integers(0, 3),
        fails_every=st.integers(2, 4),
    )
    def start(
        self,
        block_size: int,
        num_blocks: int,
        token_budget: int,
        rows: int,
        extra_len: int,
        max_overtaken: int,
        prefix_caching: bool,
        host_size: int,
        most_saving: int,
        recomputed: int,
        projected: int,
        fails_every: int,
    ) -> None:
        cache = CacheConfig(block_size=block_size, num_blocks=num_blocks)
        # A sequence's last token takes no slot; a model longer than the cache makes refusals.
        longest = max(cache.num_slots + 1 + extra_len, 2)
        config = SchedulerConfig(token_budget, min(rows, token_budget), longest, prefix_caching=prefix_caching)
        self.cache, self.config, self.max_overtaken = cache, config, max_overtaken
        self.device = Device(block_size)
        self.host: Host | None = None
        if host_blocks := self.host_blocks[host_size % len(self.host_blocks)]:

            def planner(blocks: int, start: int, free_tokens: int, num_waiting: int, inputs_known: bool) -> Split:
                assert (start % block_size, free_tokens > 0, num_waiting >= 0) == (0, True, True)
                computed = min(recomputed, blocks)
                return Split(computed, 0.0, min(projected, blocks - computed) if inputs_known else 0)

            store: HostStore[HostBlock] = HostStore(host_blocks)
            made = OffloadTier(store, block_size=block_size, most_saving=most_saving, planner=planner)
            self.host = Host(made, self.device)
        tier = None if self.host is None else self.host.tier
        self.scheduler = Scheduler(config, cache, max_overtaken=max_overtaken, tier=tier)
        self.in_flight: list[tuple[StepPlan, list[int]]] = []
        self.live: dict[str, Sequence] = {}
        self.ended: set[str] = set()
        self.first_hits: dict[str, int] = {}
        self.awaited: dict[int, Restore] = {}
        self.landed: defaultdict[Sequence, list[tuple[int, int]]] = defaultdict(list)
        self.queries = self.hits = self.landings = 0
        self.fails_every = fails_every
        self.arrivals = 0
        self.overtaken: Counter[int] = Counter()

    # What may happen

    @rule(arrivals=st.lists(ARRIVALS, min_size=1, max_size=4))
    def add(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            self._add(arrival)

    @precondition(lambda self: self.live)
    @rule(
        steps=st.integers(1, 8),
        arrival=st.none() | ARRIVALS,
        behind=st.sampled_from([1, 1, 1, 0]),
        aborts=st.sampled_from([None, SequenceStatus.ENDING, SequenceStatus.RUNNING]),
        fails=st.sampled_from([False, False, True]),
        lands=st.booleans(),
    )
    def step(
        self,
        steps: int,
        arrival: Arrival | None,
        behind: int,
        aborts: SequenceStatus | None,
        fails: bool,
        lands: bool = False,
    ) -> None:
        """Plans and completes, ``behind`` plans staying in flight while there is more to plan.

        With a plan just made, the first sequence that is ``aborts`` is aborted, and the device ``fails`` as soon as a
        sequence waits with a token pending. In each round the oldest restore ``lands``; every so many fail.
        """
        for _ in range(steps):
            if self.host and self.host.restores and lands:
                self._land_restore()
            while len(self.in_flight) > 1:
                self._complete()
            plan = self._schedule()
            if victims := [name for name, sequence in self.live.items() if sequence.status is aborts]:
                self._abort(min(victims, key=lambda name: self.live[name].restore is None))
                aborts = None
            if fails and any(sequence.num_pending for sequence in self._waiting()):
                self._fail()
                return
            while len(self.in_flight) > (behind if plan.chunks else 0):
                self._complete()
        if arrival is not None:
            self._add(arrival)

    @precondition(lambda self: len(self.in_flight) < 2)
    @rule()
    def schedule(self) -> None:
        self._schedule()

    @precondition(lambda self: self.in_flight)
    @rule()
    def complete(self) -> None:
        self._complete()

    @precondition(lambda self: self.host and self.host.saves)
    @rule(whole=st.sampled_from([True, True, True, False]))
    def save_lands(self, whole: bool) -> None:
        assert self.host
        self.host.land_save(whole=whole)
        self.seen["saved" if whole else "save failed"] += 1

    @precondition(lambda self: self.host and len(self.host.tier.store) > 0)
    @rule()
    def host_forgets(self) -> None:
        """All but what is being copied, as others' blocks would make it."""
        assert self.host
        while self.host.tier.store._evict():
            pass

    @precondition(lambda self: self.host and self.host.restores)
    @rule()
    def restore_lands(self) -> None:
        self._land_restore()

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 99))
    def abort(self, pick: int) -> None:
        self._abort(list(self.live)[pick % len(self.live)])

    @precondition(lambda self: self._restoring())
    @rule()
    def abort_while_blocks_come(self) -> None:
        self._abort(self._restoring()[0])

    @precondition(lambda self: self.live)
    @rule(rarely=st.integers(0, 3))
    def fail(self, rarely: int) -> None:
        if rarely == 0:
            self._fail()

    def teardown(self) -> None:
        """When nobody comes any more, everything ends, and within a bound."""
        if not hasattr(self, "scheduler"):
            return  # the machine was stopped before it began
        # The oldest of all is admitted when those running now and those that may still overtake it have ended, if not
        # before; the oldest running advances in every step. Then the same again for the next oldest.
        turns = self.config.max_num_seqs + self.max_overtaken + 1
        # A token may take two steps of its own: its own, and one in which its sequence waits for it.
        bound = 2 * len(self.live) * turns * self.config.max_model_len + 2
        for _ in range(bound):
            if not self.live:
                break
            if self.arrivals % 3 == 0 and (restoring := self._restoring()):
                self._abort(restoring[0])
            self._land_all()
            self.step(1, None, 1, aborts=None, fails=False)
            self.every_block_has_its_owners()
        assert not self.live
        assert not self.scheduler.has_work
        while self.in_flight:  # only what was dropped
            self._complete()
        while self.host and self.host.tier.has_saves:
            assert self._land_all() or self.host.tier.store.num_reserved == 0
            self.host.start(self.scheduler.schedule())
            if not self.host.saves:
                break  # what is left to copy has no place
        self._land_all()
        assert self.scheduler.schedule() == StepPlan(())
        assert self.scheduler.pool.num_free == self.cache.num_blocks
        if self.host:
            assert self.host.tier.store.num_reserved == 0
        self.seen["preemptions"] += self.scheduler.preemptions

    # What must hold between any two calls

    @invariant()
    def every_block_has_its_owners(self) -> None:
        pool = self.scheduler.pool
        owners = Counter(block for sequence in self.live.values() for block in sequence.block_table)
        assert [pool.num_owners(block) for block in range(self.cache.num_blocks)] == [
            owners[block] for block in range(self.cache.num_blocks)
        ]
        assert len(owners) + pool.num_free == self.cache.num_blocks
        assert pool.num_cached <= (pool.num_free if self.config.prefix_caching else 0)
        assert all(len(set(s.block_table)) == len(s.block_table) for s in self.live.values())
        self.seen["shared"] += max(owners.values(), default=0) > 1

    @invariant()
    def what_is_found_is_what_its_key_says(self) -> None:
        """Of every key that any sequence has, the block's content leads to that key."""
        for sequence in self.live.values():
            for index, key in enumerate(sequence.block_keys):
                block = self.scheduler.pool.find(key)
                if block is None:
                    continue
                start = index * self.cache.block_size
                assert self.device.content(block) == [
                    (sequence.request.cache_salt, tuple(sequence.tokens[: position + 1]))
                    for position in range(start, start + self.cache.block_size)
                ]

    @invariant()
    def what_the_host_holds_is_what_its_key_says(self) -> None:
        if not self.host:
            return
        store = self.host.tier.store
        assert len(store) + store.num_reserved <= store.num_blocks
        assert store.num_reserved == len(self.host.saves)
        for sequence in self.live.values():
            for index, key in enumerate(sequence.block_keys):
                if not store.holds(key):
                    continue
                start = index * self.cache.block_size
                expected = [
                    (sequence.request.cache_salt, tuple(sequence.tokens[: position + 1]))
                    for position in range(start, start + self.cache.block_size)
                ]
                assert store[key].kv == expected
                assert store[key].inputs in (expected, None)

    @invariant()
    def every_sequence_holds_what_its_status_says(self) -> None:
        running, waiting, ending = self._running(), self._waiting(), self._ending()
        assert len(running) + len(waiting) + len(ending) == len(self.live)
        scheduler = self.scheduler
        assert (scheduler.num_running, scheduler.num_waiting, scheduler.num_ending) == tuple(
            map(len, (running, waiting, ending))
        )
        assert scheduler.has_work is bool(self.live)
        assert len({sequence.row for sequence in running}) == len(running)
        for sequence in running:
            assert sequence.row in range(self.config.max_num_seqs)
            assert 0 <= sequence.num_computed <= sequence.num_tokens <= sequence.max_length
            held = len(sequence.block_table)
            # The token that comes last may have no slot yet.
            assert held in (self._blocks(sequence.num_tokens), self._blocks(sequence.num_tokens - 1))
            assert held >= self._blocks(sequence.num_computed)
        if not self.host:
            assert sum(sequence.num_uncomputed > 1 for sequence in running) <= 1
        for sequence in self.live.values():
            if sequence.restore is not None:
                assert sequence.row is not None
                assert not sequence.restore.cancelled
                assert sequence.num_computed <= sequence.restore.start < sequence.restore.end < sequence.num_tokens
        for sequence in (*waiting, *ending):
            assert (sequence.block_table, sequence.row, sequence.num_computed) == ([], None, 0)

    @invariant()
    def what_is_pending_is_in_flight(self) -> None:
        pending = Counter(c.sequence.arrival for plan, _ in self.in_flight for c in plan.chunks if c.samples)
        for sequence in self.live.values():
            assert sequence.num_pending == pending[sequence.arrival]
        for sequence in self._ending():
            assert sequence.num_pending == (sequence.params.max_tokens > 0)

    # How it is done

    def _adapt(self, arrival: Arrival) -> Arrival:
        return arrival

    def _add(self, arrival: Arrival) -> None:
        arrival = self._adapt(arrival)
        request = arrival.request(f"r{self.arrivals}", self.config.max_model_len)
        grammar = GRAMMAR if arrival.constrained else None
        sequence = Sequence(request, eos_token_ids=frozenset({EOS}), arrival=self.arrivals, seed=0, grammar=grammar)
        prompt, max_tokens = len(request.prompt), request.params.max_tokens
        if prompt + max_tokens > self.config.max_model_len or prompt + max(max_tokens - 1, 0) > self.cache.num_slots:
            with pytest.raises(RequestRefusedError):
                self.scheduler.add(sequence)
            return
        self.scheduler.add(sequence)
        self.live[request.request_id] = sequence
        self.arrivals += 1

    def _abort(self, name: str) -> None:
        self.seen[f"aborted while {self.live[name].status}"] += 1
        assert self.scheduler.abort(name)
        self._end(self.live[name], FinishReason.ABORT)
        assert not self.scheduler.abort(name)

    def _fail(self) -> None:
        lost = [s for s in self.live.values() if s.row is not None or s in self._ending() or s.num_pending]
        plans = [plan for plan, _ in self.in_flight]
        self.in_flight.clear()
        self.device = Device(self.cache.block_size)
        assert self.scheduler.fail() == lost
        if self.host:
            self.host.fail(self.device)
        for sequence in lost:
            self._end(sequence, FinishReason.ERROR)
        assert (self.scheduler.num_running, self.scheduler.num_ending, self.scheduler.pool.num_cached) == (0, 0, 0)
        for plan in plans:
            with pytest.raises(RuntimeError, match="stale plan"):
                self.scheduler.complete(plan, [0] * plan.num_samples)

    def _running(self) -> list[Sequence]:
        return [sequence for sequence in self.live.values() if sequence.row is not None]

    def _restoring(self) -> list[str]:
        return [name for name, sequence in self.live.items() if sequence.restore is not None]

    def _waiting(self) -> list[Sequence]:
        return [sequence for sequence in self.live.values() if sequence.status is SequenceStatus.WAITING]

    def _ending(self) -> list[Sequence]:
        return [sequence for sequence in self.live.values() if sequence.status is SequenceStatus.ENDING]

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.cache.block_size)

    def _schedule(self) -> StepPlan:
        ran, waited = self._running(), self._waiting()
        before = {sequence: (sequence.num_computed, sequence.num_tokens) for sequence in self.live.values()}
        deferred = {sequence for sequence in ran if sequence.grammar is not None and sequence.num_pending}
        preemptions = self.scheduler.preemptions
        plan = self.scheduler.schedule()
        run, ending = self._running(), self._ending()
        preempted = [sequence for sequence in ran if sequence.status is SequenceStatus.WAITING]
        for sequence in ran:
            # Whose last token is planned leaves, and nobody else does but those preempted.
            planned_out = before[sequence][1] == sequence.max_length and before[sequence][0] >= sequence.max_cached
            assert (sequence in ending) is planned_out
        assert self.scheduler.preemptions == preemptions + len(preempted)
        stayed = [sequence for sequence in ran if sequence not in ending]
        if stayed:  # the oldest stays, and who goes is younger than who stays
            assert stayed[0] in run
            assert all(gone.arrival > kept.arrival for gone in preempted for kept in run)
        admitted = [sequence for sequence in waited if sequence in run]
        assert list(plan.admitted) == admitted
        assert not (admitted and preempted)
        for sequence in admitted:
            before[sequence] = self._check_hit(sequence, plan), len(sequence.tokens)
        assert (self.scheduler.prefix_queries, self.scheduler.prefix_hits) == (self.queries, self.hits)
        self._check_chunks(plan, run, before)
        deferred &= set(run)
        self.seen["deferred"] += bool(deferred)
        self.seen["all deferred"] += bool(deferred) and not plan.chunks
        assert not deferred & {chunk.sequence for chunk in plan.chunks}
        idle = set(run) - {chunk.sequence for chunk in plan.chunks} - deferred
        stalled = {s for s in run if s.restore is not None and before[s][0] == s.restore.start}
        if self.host:
            # Who has no chunk waits for the host, or for those before it, which take the whole budget.
            assert stalled <= idle
            assert idle == stalled or plan.num_tokens == self.config.token_budget
            assert plan.chunks or stalled or deferred or len(self.live) == len(ending)
            self.seen["stalled"] += bool(stalled)
        else:
            assert not idle
            assert plan.chunks or deferred or len(self.live) == len(ending)
        still = [sequence for sequence in waited if sequence not in run and not self._waits_for_another(sequence)]
        self._check_overtaking(still, admitted)
        if plan.num_tokens < self.config.token_budget and not preempted:
            self._check_nothing_more_fits(plan, run, still)
        if self.host:
            self.host.start(plan)
            self.seen["saved without inputs"] += any(not save.has_inputs for save in plan.saves)
        if plan.chunks:
            self.in_flight.append((plan, self.device.run(plan)))
        else:
            self.device.load(plan)
            assert self.scheduler.complete(plan, []) == []
            self.seen["all in flight"] += bool(self.live)
        return plan

    def _check_hit(self, sequence: Sequence, plan: StepPlan) -> int:
        """Where an admitted sequence begins; what is found there, the device checks when it reads."""
        chunks = [chunk for chunk in plan.chunks if chunk.sequence is sequence]
        if chunks:
            start = chunks[0].start
            assert sequence.num_pending == chunks[0].samples
        else:
            assert sequence.restore is not None
            start = sequence.num_computed
        assert start % self.cache.block_size == 0
        assert start < len(sequence.tokens)
        if self.config.prefix_caching and sequence.params.prompt_logprobs is None:
            self.queries += len(sequence.tokens)
            self.hits += start
        else:
            assert start == 0
            assert sequence.restore is None
        again = sequence.request_id in self.first_hits
        assert sequence.num_cached == self.first_hits.setdefault(sequence.request_id, start)
        self.seen["found again after preemption" if again else "found"] += start > 0
        self.seen["restored beside computing"] += bool(chunks) and sequence.restore is not None
        return start

    def _check_chunks(self, plan: StepPlan, run: list[Sequence], before: dict[Sequence, tuple[int, int]]) -> None:
        assert plan.num_tokens == sum(chunk.length for chunk in plan.chunks) <= self.config.token_budget
        assert len({chunk.sequence for chunk in plan.chunks}) == len(plan.chunks) <= self.config.max_num_seqs
        assert [chunk.length > 1 for chunk in plan.chunks] == sorted(chunk.length > 1 for chunk in plan.chunks)
        for chunk in plan.chunks:
            sequence, end = chunk.sequence, chunk.start + chunk.length
            computed, tokens = before[sequence]
            assert (chunk.start, chunk.end) == (computed, end)
            if sequence.num_computed != end:  # what comes next has come from the host
                assert self.host
                assert sequence.num_computed in {restored for _, restored in self.landed[sequence]}
            assert chunk.start < end <= tokens
            assert chunk.samples is (end == tokens and sequence.params.max_tokens > 0)
            assert sequence.num_tokens == tokens + chunk.samples
            assert len(sequence.block_table) == self._blocks(tokens)

    def _waits_for_another(self, sequence: Sequence) -> bool:
        """What it wants from the host is coming for one that runs, begins with the same, and that it waits for once."""
        awaited = sequence.awaited
        if awaited is None:
            return False
        assert self.awaited.setdefault(sequence.arrival, awaited) is awaited
        if not awaited.is_under_way:
            return False
        other, first = awaited.sequence, self.cache.block_size
        assert other.status is SequenceStatus.RUNNING
        assert (other.request.cache_salt, other.tokens[:first]) == (
            sequence.request.cache_salt,
            sequence.tokens[:first],
        )
        self.seen["waited for another's"] += 1
        return True

    def _check_nothing_more_fits(self, plan: StepPlan, run: list[Sequence], still: list[Sequence]) -> None:
        """Nothing that runs could take more; who waits has no row, no room, or may not overtake once more."""
        for chunk in plan.chunks:
            restore = chunk.sequence.restore
            ends = {restore.start} if restore is not None else {start for start, _ in self.landed[chunk.sequence]}
            assert chunk.samples or chunk.end == chunk.sequence.num_tokens or chunk.end in ends
        if len(run) == self.config.max_num_seqs:
            return
        growing = sum(self._blocks(sequence.max_cached) > len(sequence.block_table) for sequence in run)
        for sequence in still[:ADMISSION_WINDOW]:
            needed = self._blocks(len(sequence.tokens))
            may_grow = self._blocks(sequence.max_cached) > needed
            assert needed + growing + may_grow > self.scheduler.pool.num_free
            if self.overtaken[sequence.arrival] == self.max_overtaken:
                break

    def _check_overtaking(self, still: list[Sequence], admitted: list[Sequence]) -> None:
        for sequence in admitted:
            self.overtaken.pop(sequence.arrival, None)
            self.awaited.pop(sequence.arrival, None)
        for sequence in still:
            self.overtaken[sequence.arrival] += sum(younger.arrival > sequence.arrival for younger in admitted)
            assert self.overtaken[sequence.arrival] <= self.max_overtaken
            self.seen["at the bound"] += self.overtaken[sequence.arrival] == self.max_overtaken > 0

    def _land_all(self) -> bool:
        """Every copy that is under way ends; whether there was one."""
        if not self.host:
            return False
        any_under_way = bool(self.host.saves or self.host.restores)
        while self.host.saves:
            self.host.land_save(whole=True)
        while self.host.restores:
            self._land_restore()
        return any_under_way

    def _land_restore(self) -> None:
        assert self.host
        self.landings += 1
        whole = self.landings % self.fails_every > 0
        restore = self.host.land_restore(whole=whole)
        sequence = restore.sequence
        self.seen["restore " + ("cancelled" if restore.cancelled else "landed" if whole else "failed")] += 1
        if whole and not restore.cancelled:
            self.landed[sequence].append((restore.start, restore.end))
            self.seen["projected"] += restore.num_projected > 0
            self.seen["projected and copied"] += 0 < restore.num_projected < len(restore.blocks)
            if not sequence.num_preemptions:
                self.first_hits[sequence.request_id] += restore.end - restore.start
        self.scheduler.restored(restore, whole=whole)

    def _complete(self) -> None:
        plan, sampled = self.in_flight.pop(0)
        expected = list(self._expected_outcomes(plan, sampled))
        outcomes = self.scheduler.complete(plan, sampled)
        assert [(outcome.index, outcome.token) for outcome in outcomes] == expected
        for outcome in outcomes:
            assert outcome.sequence is plan.chunks[outcome.index].sequence
            self._check_output(outcome)
        self.seen["dropped"] += len(sampled) - sum(outcome.token is not None for outcome in outcomes)

    def _expected_outcomes(self, plan: StepPlan, sampled: list[int]) -> list[tuple[int, int | None]]:
        tokens = iter(sampled)
        expected: list[tuple[int, int | None]] = []
        for index, chunk in enumerate(plan.chunks):
            token = next(tokens) if chunk.samples else None
            ends = chunk.sequence.params.max_tokens == 0 and chunk.end == chunk.sequence.num_prompt
            if self.live.get(chunk.sequence.request_id) is chunk.sequence and (chunk.samples or ends):
                expected.append((index, token))
                self.seen[f"token of one {chunk.sequence.status}"] += chunk.samples
        return expected

    def _check_output(self, outcome: Outcome) -> None:
        sequence = outcome.sequence
        tokens, reason = full_recomputation(sequence.request)
        assert sequence.tokens == tokens[: len(sequence.tokens)]
        assert (outcome.finish_reason is None) is (len(sequence.tokens) < len(tokens))
        if outcome.finish_reason is not None:
            self._end(sequence, reason)

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        assert sequence.request_id not in self.ended
        self.ended.add(sequence.request_id)
        del self.live[sequence.request_id]
        assert (sequence.status, sequence.finish_reason) == (SequenceStatus.FINISHED, reason)
        assert (sequence.block_table, sequence.row, sequence.num_pending) == ([], None, 0)


class OffloadMachine(SchedulerMachine):
    """The same with a host store behind the pool, and requests that have more in common."""

    host_blocks = (3, 40, 40, 40)

    def _adapt(self, arrival: Arrival) -> Arrival:
        return replace(
            arrival, prompt=min(arrival.prompt + 3, 7), seed=arrival.seed % 2, prompt_logprobs=None, salt=None
        )


RARE = (
    "preemptions",
    "at the bound",
    "shared",
    "found",
    "found again after preemption",
    "dropped",
    "all in flight",
    "token of one waiting",
    "token of one running",
    "token of one ending",
    "deferred",
    "all deferred",
    "aborted while waiting",
    "aborted while running",
    "aborted while ending",
)
RARE_WITH_HOST = (
    "preemptions",
    "saved",
    "save failed",
    "stalled",
    "restored beside computing",
    "restore landed",
    "restore failed",
    "restore cancelled",
    "waited for another's",
    "projected",
    "projected and copied",
    "saved without inputs",
)


def run_machine(machine: type[SchedulerMachine], events: tuple[str, ...], examples: int) -> None:
    machine.seen = Counter()
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
    # Else the load was too light to show anything.
    assert all(machine.seen[event] > 0 for event in events), machine.seen


def test_the_scheduler_under_any_load() -> None:
    run_machine(SchedulerMachine, RARE, 200)


def test_the_scheduler_with_a_host_store_under_any_load() -> None:
    run_machine(OffloadMachine, RARE_WITH_HOST, 300)


@pytest.mark.full
@pytest.mark.timeout(1800)  # minutes where the run checks the types of every call
def test_the_scheduler_under_any_load_at_length() -> None:
    run_machine(SchedulerMachine, RARE, 2000)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_scheduler_with_a_host_store_at_length() -> None:
    run_machine(OffloadMachine, RARE_WITH_HOST, 2000)
