"""Dynamic SplitFuse (DeepSpeed-FastGen, arXiv 2401.08671): share out the token budget of one step.

1. Each decoding sequence gets one token. Only a sequence under a grammar sits out while its last token is in flight.
2. Prompts get the rest of the budget in the order of service, partly computed and waiting ones alike.
   Forced tokens of a grammar get what prompts leave, each run in the chunk of its decode. So nobody waits for them, and
   without room they go on by one token a step. A step that would be narrow gets them only if they at least double its
   tokens.
3. A waiting sequence needs a row and blocks for all its tokens. Where they are lacking, sequences at the end of the
   order are preempted for it, if it may preempt them. They are admitted again only after it.
   A tenant without a row is owed one. Its first sequence goes before all others, and takes the room of a tenant that
   has several rows. Online and background sequences count apart.
4. Where a decode needs a block and none is free, the last running sequence of a tenant that has several rows is
   preempted. It loses its blocks, waits at its place in the order and is computed again. So the first running sequence
   advances in every step.
5. Background sequences get the rest: at most ``background_tokens`` in a step with online chunks, and one token each
   where more would turn a narrow step into a wide one. With ``hold_background`` they get nothing.
6. What is planned counts as computed, and a token that will be sampled as pending, so that the next plan can be made
   while this step runs. Drafts, which ``drafts`` adds to a finished plan, count only once they are known to be right.

The order of service, who may preempt whom, and whether prompts get less than the rest of the budget are the policy's
(``policy.Fifo``). FastGen admits without rules 3 and 4. There all prompts can be partly computed with no block free,
and the queue stands still behind one prompt that does not fit. Host only, no jax, no clock.
"""

from math import inf

from jaxgen.cache.cache_manager import KVCacheManager
from jaxgen.core.config import SchedulerConfig
from jaxgen.core.sequence import Chunk, Sequence, SequenceStatus
from jaxgen.core.stats import SchedulerCounters
from jaxgen.scheduling.admission import Admission, make_room, make_room_for_owed
from jaxgen.scheduling.policy import Fifo
from jaxgen.scheduling.step_time import StepBudget


class StepPlanner:
    """The planning half of a Scheduler: decodes, then prompts, then the background, by the rules above."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv_cache: KVCacheManager,
        policy: Fifo,
        *,
        max_overtaken: int,
        narrow: bool,
        counters: SchedulerCounters,
    ) -> None:
        self.preempted: list[Sequence] = []
        """Sequences that lost row and blocks by the last plan."""
        self.relocated: list[Sequence] = []
        """Sequences that ran before and got other blocks by the last plan."""
        self._counters = counters
        self._most_prompt_tokens: int | None = None
        self._budget = config.token_budget
        self._background_tokens = config.background_tokens
        self._kv_cache = kv_cache
        self._policy = policy
        self._queues = policy.queues
        self._max_overtaken = max_overtaken
        self._narrow = narrow
        self._exhausted: list[Sequence] = []  # those whose last token the last plan samples
        self._preempted: Sequence | None = None  # by the plan that is being made, the first of them in the order

    def plan(self, *, hold_background: bool, most_prompt_tokens: int | None) -> tuple[list[Chunk], list[Sequence]]:
        """The next step's chunks, and the sequences that begin to run with it."""
        self._most_prompt_tokens = most_prompt_tokens
        self._kv_cache.begin_plan()
        self._retire()
        self._preempted = None
        self.preempted.clear()
        self.relocated.clear()
        chunks: list[Chunk] = []
        admitted = self._plan_kind(chunks, background=False)
        if not hold_background:
            admitted += self._plan_kind(chunks, background=True)
        return chunks, admitted

    def idle(self, chunks: list[Chunk]) -> tuple[Sequence, ...]:
        """Return the running sequences that have none of these chunks."""
        running = self._queues.running
        if len(chunks) == len(running):
            return ()
        computed = {chunk.sequence for chunk in chunks}
        return tuple([sequence for sequence in running if sequence not in computed])

    def _retire(self) -> None:
        """Free the rows and blocks of sequences that the last plan took to their last token."""
        for sequence in self._exhausted:
            if sequence.status is SequenceStatus.RUNNING:
                self._queues.leave(sequence, self._queues.running)
                self._kv_cache.release(sequence, SequenceStatus.ENDING)
        self._exhausted.clear()

    def _plan_kind(self, chunks: list[Chunk], *, background: bool) -> list[Sequence]:
        """Add the chunks of online or background sequences to the plan so far; return the sequences that it admits."""
        room = self._room(chunks, background=background)
        first = make_room_for_owed(self._policy, self._kv_cache, self._preempt, background=background)
        make_room(self._policy, self._kv_cache, room.tokens, background=background, preempt=self._preempt)
        partly_computed, with_forced = self._plan_decodes(room, chunks, background=background)
        if not background:
            self._policy.limit_prompts(room, chunks, partly_computed, any_forced=bool(with_forced))
        admitted: list[Sequence] = []
        if not room.is_full and (partly_computed or self._queues.any_waits(background=background)):
            admitted = self._plan_prompts(first, partly_computed, room, chunks, background=background)
        self._lengthen(with_forced, room, chunks)
        return admitted

    def _plan_prompts(
        self,
        first: list[Sequence],
        partly_computed: list[Sequence],
        room: StepBudget,
        chunks: list[Chunk],
        *,
        background: bool,
    ) -> list[Sequence]:
        """Add chunks of prompts; return the sequences admitted. ``first``: of tenants that are owed a row (rule 3)."""
        most = room.tokens if self._most_prompt_tokens is None else min(room.tokens, self._most_prompt_tokens)
        reserved = room.tokens - most
        room.tokens = most
        admission = self._admission()
        for sequence in first:
            if not room.is_full and not admission.closed and admission.admit(sequence, owed=True):
                self._plan_prompt(sequence, room, chunks)
        waiting = [] if admission.closed else self._queues.waiting_of(background=background)
        left = len(partly_computed)
        for line in self._policy.rounds(partly_computed, waiting):
            admission.round_over = False
            for sequence in line:
                if room.is_full or (not left and (admission.closed or admission.round_over)):
                    break
                runs = sequence.row is not None
                left -= runs
                if runs or (not admission.closed and admission.admit(sequence)):
                    self._plan_prompt(sequence, room, chunks)
        room.tokens += reserved
        return admission.admitted

    def _plan_decodes(
        self, room: StepBudget, chunks: list[Chunk], *, background: bool
    ) -> tuple[list[Sequence], list[int]]:
        """Add a token of each running sequence of a class that decodes.

        Returns the other sequences that may be computed, and the indices of chunks that forced tokens follow.
        """
        decoding, partly_computed = self._give_slots(room, background=background)
        with_forced: list[int] = []
        for sequence in decoding:
            chunks.append(self._count(Chunk(sequence, sequence.num_computed, 1)))
            if sequence.num_forced and not chunks[-1].samples:
                with_forced.append(len(chunks) - 1)
        return partly_computed, with_forced

    def _give_slots(self, room: StepBudget, *, background: bool) -> tuple[list[Sequence], list[Sequence]]:
        """Give each running sequence of a class that decodes a slot for its next token, and spend a token for it.

        Returns the sequences with a slot, and the other sequences that may be computed. All slots are given before the
        first chunk is made: a block for one sequence may be taken from any other, also from one that precedes it.
        """
        decoding: list[Sequence] = []
        partly_computed: list[Sequence] = []
        timed, has_slot = room.seconds < inf, self._kv_cache.has_slot
        num_preempted = len(self.preempted)
        for sequence in tuple(self._queues.running):
            if sequence.request.background is not background or sequence.row is None:
                continue  # without a row: preempted just now
            if sequence.waits_for_token:
                continue
            if sequence.blocks.restore is not None or not sequence.is_decode:
                partly_computed.append(sequence)
            elif room.tokens > 0 and not (timed and room.is_full) and (has_slot(sequence) or self._add_slot(sequence)):
                decoding.append(sequence)
                if timed:
                    room.spend(Chunk(sequence, sequence.num_computed, 1))
                else:
                    room.tokens -= 1  # as ``spend`` does, 256 times a step
        if len(self.preempted) == num_preempted:
            return decoding, partly_computed
        still_running = [sequence for sequence in decoding if sequence.row is not None]
        room.tokens += len(decoding) - len(still_running)
        return still_running, [sequence for sequence in partly_computed if sequence.row is not None]

    def _lengthen(self, with_forced: list[int], room: StepBudget, chunks: list[Chunk]) -> None:
        """Add forced tokens to the decodes of these indices."""
        if with_forced and self._narrow and all(chunk.length == 1 for chunk in chunks):
            forced = sum([chunks[index].sequence.num_uncomputed for index in with_forced])
            if forced < len(chunks):
                return
        for index in with_forced:
            chunk = chunks[index]
            if room.is_full:
                return
            most = min(room.tokens_for(chunk.sequence), room.longest - 1, chunk.sequence.num_uncomputed)
            more = self._kv_cache.slots_after(chunk, most)
            if more > 0:
                room.spend(Chunk(chunk.sequence, chunk.end, more))
                chunks[index] = self._count(Chunk(chunk.sequence, chunk.start, chunk.length + more))

    def _room(self, online: list[Chunk], *, background: bool) -> StepBudget:
        """Return what is left of a step with these chunks, for online or background sequences."""
        budget = left = self._budget - sum([chunk.length for chunk in online])
        running = self._queues.running
        if not background or not running or running[0].request.background:
            return StepBudget(budget, budget)
        if self._background_tokens is not None:
            left = min(budget, self._background_tokens)
        wide = max([chunk.length for chunk in online], default=1) > 1
        room = StepBudget(left, 1 if self._narrow and not wide else left)
        self._policy.limit_background(room, online)
        return room

    def _admission(self) -> Admission:
        return Admission(
            self._policy,
            self._kv_cache,
            max_overtaken=self._max_overtaken,
            free_tokens=max(1, self._budget - len(self._queues.running)),
            preempted=self._preempted,
        )

    def _add_slot(self, sequence: Sequence) -> bool:
        """Give a sequence a block for its next token. False: it was itself the last and is preempted."""
        while self._kv_cache.pool.num_free == 0:
            last = self._policy.last_running()
            self._preempt(last)
            if last is sequence:
                return False
        self._kv_cache.grow(sequence)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        if self._preempted is None or sequence.standing.order_key < self._preempted.standing.order_key:
            self._preempted = sequence
        self._queues.put_back(sequence)
        self._kv_cache.release(sequence, SequenceStatus.WAITING)
        sequence.standing.num_preemptions += 1
        self._counters.preemptions += 1
        self.preempted.append(sequence)

    def _plan_prompt(self, sequence: Sequence, room: StepBudget, chunks: list[Chunk]) -> None:
        """Adds the next chunk of a sequence that is not decoding, if there is one."""
        if sequence.waits_for_host:
            return
        if self._kv_cache.search_again(sequence):
            self.relocated.append(sequence)
        tokens = room.tokens_for(sequence)
        restore = sequence.blocks.restore
        if restore is not None:
            tokens = min(tokens, restore.start - sequence.num_computed)
        tokens = self._kv_cache.cut(sequence, sequence.num_computed, min(sequence.num_uncomputed, tokens))
        chunks.append(self._count(Chunk(sequence, sequence.num_computed, tokens)))
        room.spend(chunks[-1])
        self._kv_cache.skip_restored(sequence)

    def _count(self, chunk: Chunk) -> Chunk:
        """Count a chunk as computed, and its sample as pending."""
        self._kv_cache.advance(chunk)
        if chunk.end + chunk.samples == chunk.sequence.max_length:
            self._exhausted.append(chunk.sequence)
        return chunk
