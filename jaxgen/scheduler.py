"""Dynamic SplitFuse: which tokens of which sequences the next step computes. Host only, no jax, no clock, no thread."""

from bisect import bisect_left, insort
from collections import deque

from jaxgen.config import CacheConfig, SchedulerConfig
from jaxgen.holdings import Holdings
from jaxgen.offload.tier import OffloadTier
from jaxgen.request import FinishReason, RequestRefusedError
from jaxgen.sequence import Chunk, Restore, Sequence, SequenceStatus
from jaxgen.step_plan import Outcome, StepPlan

MAX_OVERTAKEN = 16
"""How often younger sequences may be admitted before a waiting one that does not fit yet."""

ADMISSION_WINDOW = 16
"""Most waiting sequences passed over in one step, so that a step's cost does not grow with the number waiting."""


class Scheduler:
    """Fills every step's token budget: one token of each decoding sequence, then pieces of prompts.

    Dynamic SplitFuse of DeepSpeed-FastGen (arXiv 2401.08671), with other rules for memory, because FastGen's can lock
    (all prompts partly computed, no block free) and its queue stands still behind one prompt that does not fit:

    - A sequence is admitted with the blocks of all its tokens, so a prompt never runs out half-way. Those that the
      prefix cache finds are shared, and what they hold is not computed again.
    - Admission leaves a block free for each sequence that may still grow, so that it is not undone at once.
    - When blocks run out all the same, the last running sequence is preempted: it loses its blocks, waits at its place
      in the order and is computed anew. So the first running sequence advances in every step, and the first of all is
      never preempted.
    - A waiting sequence that does not fit is passed over by others of its level, ``max_overtaken`` times at most.

    The order is by level, then by arrival. A sequence's level is its class, online before background, and within that
    its priority. A waiting sequence that lacks a row or blocks preempts running ones of later levels, the last first,
    and none of a later level is admitted before it: who is preempted so comes back when it is served. That a lower
    level waits as long as higher ones take everything is what levels mean: bounds hold within one.

    Background sequences get what is left of the budget when online ones, their prompts too, have had theirs: beside
    online chunks ``background_tokens`` at most, and, where steps of decodes only are ``narrow``, no more than a token
    each where more would make such a step a wide one. While ``hold_background`` is set they get nothing.

    Steps overlap: a plan is made while the one before it is in flight, that is, not completed. So ``schedule`` counts
    what it plans as computed, and the token a chunk samples as pending; what must be known of a token before the next
    plan is only that it comes. A sequence whose last token is planned gives row and blocks back at the next plan and is
    ENDING until that token arrives. The device runs steps in the order planned, so whoever gets the blocks writes them
    after they were read.

    If anything runs or waits, and is not held, the plan is not empty. Every online sequence that runs is in every plan:
    decodes leave the budget a token (max_num_seqs <= token_budget), and one online prompt at most is partly computed,
    since none is admitted after one that the budget cuts. Only a sequence under a grammar sits out while its last token
    is in flight, since what may follow depends on it; a plan is empty where all that may be computed do so.

    With a ``tier``, blocks found in host memory come from there while the steps go on. A sequence that waits for them
    has no chunk, so a plan may be empty, several prompts may be partly computed, and the first takes the budget first.
    Steps never wait: ``restored`` says when blocks are there.

    The order of calls: ``schedule`` when one plan at most is in flight, ``complete`` with each plan in the order
    planned, or ``fail``, which drops the plans in flight; ``add`` and ``abort`` at any time. Plans without chunks are
    never in flight; completing one does nothing.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: CacheConfig,
        *,
        max_overtaken: int = MAX_OVERTAKEN,
        tier: OffloadTier | None = None,
        narrow: bool = False,
    ) -> None:
        """``narrow``: steps of which no chunk is longer than a token are cheaper than others."""
        self._holdings = Holdings(config, cache, tier)
        self.pool = self._holdings.pool
        self.hold_background = False
        self.num_online = 0
        """Sequences that live and are not of the background."""
        self.preemptions = 0
        self._config = config
        self._block_size = cache.block_size
        self._max_overtaken = max_overtaken
        self._prefixes = self._holdings.prefixes
        self._narrow = narrow
        self._running: list[Sequence] = []  # this and the next: in order
        self._waiting: list[Sequence] = []
        self._live: dict[str, Sequence] = {}
        self._in_flight: deque[StepPlan] = deque()
        self._exhausted: list[Sequence] = []  # those whose last token the last plan samples
        self._last_arrival: int | None = None
        self._preempted: Sequence | None = None  # by the plan that is being made, the first of them in the order
        self._tier = tier
        self._restorer = self._holdings.restorer

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_ending(self) -> int:
        return len(self._live) - len(self._running) - len(self._waiting)

    @property
    def prefix_queries(self) -> int:
        """Tokens of admitted sequences that were looked up in the prefix cache."""
        return self._holdings.prefix_queries

    @property
    def prefix_hits(self) -> int:
        """Those of them that were found."""
        return self._holdings.prefix_hits

    @property
    def has_work(self) -> bool:
        """Whether any sequence has not ended; all that is left may be in flight."""
        return bool(self._live)

    def add(self, sequence: Sequence) -> None:
        """Takes a new sequence, younger than all before it.

        Raises RequestRefusedError if it is too long for the model or the cache, ValueError if its request_id is that of
        a living sequence or its arrival is not above that of every sequence added before.
        """
        prompt, max_tokens = sequence.num_prompt, sequence.params.max_tokens
        asked = f"prompt ({prompt} tokens) + max_tokens ({max_tokens})"
        if prompt + max_tokens > self._config.max_model_len:
            raise RequestRefusedError(
                f"{asked} is {prompt + max_tokens} tokens, the limit (--max-model-len) is {self._config.max_model_len}"
            )
        blocks = self._holdings.blocks_for(sequence.max_cached)
        if blocks > self.pool.num_blocks:
            raise RequestRefusedError(
                f"{asked} takes {blocks} cache blocks of {self._block_size} tokens, "
                f"the cache (--num-blocks) has {self.pool.num_blocks}"
            )
        if sequence.request_id in self._live:
            raise ValueError(f"request_id {sequence.request_id!r} is in use")
        if self._last_arrival is not None and sequence.arrival <= self._last_arrival:
            raise ValueError(f"arrival must be above {self._last_arrival}, not {sequence.arrival}")
        self._last_arrival = sequence.arrival
        self._live[sequence.request_id] = sequence
        insort(self._waiting, sequence, key=_urgency)
        self.num_online += not sequence.request.background

    def schedule(self) -> StepPlan:
        """Plans the next step and counts it as computed; empty when there is nothing that can be computed. May preempt.

        Raises RuntimeError when two plans are in flight.
        """
        if len(self._in_flight) > 1:
            raise RuntimeError("two plans are in flight: complete the older one before the next is made")
        self._retire()
        self._preempted = None
        chunks: list[Chunk] = []
        admitted = self._plan_class(chunks, background=False)
        if not self.hold_background:
            admitted += self._plan_class(chunks, background=True)
        short = [chunk for chunk in chunks if chunk.length == 1]
        long = [chunk for chunk in chunks if chunk.length > 1]
        saves = () if self._tier is None else self._tier.take_saves()
        restores = () if self._restorer is None else self._restorer.take_begun()
        plan = StepPlan((*short, *long), tuple(admitted), saves, restores)
        if plan.chunks:
            self._in_flight.append(plan)
        return plan

    def complete(self, plan: StepPlan, sampled: list[int]) -> list[Outcome]:
        """Takes a step's result: one token per chunk that samples, in the plan's order.

        Returns an outcome for each sequence that got a token or ended. One that had ended before gets none. Raises
        ValueError if the number of tokens is wrong, RuntimeError if the plan is not the oldest in flight.
        """
        if len(sampled) != plan.num_samples:
            raise ValueError(f"the plan samples {plan.num_samples} tokens, got {len(sampled)}")
        if not plan.chunks:
            return []
        if not self._in_flight or self._in_flight[0] is not plan:
            raise RuntimeError("stale plan: plans are completed once, in the order planned")
        self._in_flight.popleft()
        tokens = iter(sampled)
        outcomes = []
        for index, chunk in enumerate(plan.chunks):
            sequence = chunk.sequence
            token = next(tokens) if chunk.samples else None
            if sequence.finish_reason is not None:
                continue
            if token is not None:
                sequence.num_pending -= 1
                sequence.tokens.append(token)
                if len(sequence.tokens) % self._block_size == 0:
                    self._prefixes.register(sequence)
            elif chunk.end < sequence.max_length:
                continue  # a piece of a prompt; with max_tokens 0 the last piece is the end
            reason = sequence.stop_reason()
            if reason is not None:
                self._end(sequence, reason)
            outcomes.append(Outcome(sequence, index, token, reason))
        return outcomes

    def restored(self, restore: Restore, *, whole: bool) -> None:
        """What a plan's restore brought is in the cache, or, if not ``whole``, will not be: then it is computed."""
        sequence = restore.sequence
        if sequence.restore is not restore:
            return  # it lost its blocks meanwhile
        if not whole:
            sequence.restore = None
            return
        restore.landed = True
        if sequence.num_preemptions == 0:
            sequence.num_cached += restore.end - restore.start
        self._skip_restored(sequence)

    def abort(self, request_id: str) -> bool:
        """Ends a living sequence, wherever it stands. False if none such lives."""
        sequence = self._live.get(request_id)
        if sequence is None:
            return False
        self._end(sequence, FinishReason.ABORT)
        return True

    def fail(self) -> list[Sequence]:
        """The device's state is lost: ends, with ERROR, every sequence that needs it, and returns them, oldest first.

        These are all but those that wait with no token pending. Plans in flight can no longer be completed, and nothing
        cached is found again.
        """
        lost = [s for s in self._live.values() if s.status is not SequenceStatus.WAITING or s.num_pending]
        for sequence in lost:
            self._end(sequence, FinishReason.ERROR)
        self.pool.forget()
        self._in_flight.clear()
        return lost

    def _retire(self) -> None:
        """What the last plan took to the last token gives back what it holds."""
        for sequence in self._exhausted:
            if sequence.status is SequenceStatus.RUNNING:
                _remove(self._running, sequence)
                self._holdings.release(sequence, SequenceStatus.ENDING)
        self._exhausted.clear()

    def _make_room(self, budget: int, *, background: bool) -> None:
        """Running sequences are preempted, the last first, where waiting ones of this class and an earlier level would
        not fit, as far as ``budget`` tokens reach."""
        waiting, running = self._waiting, self._running
        if not waiting or not running or waiting[0].level >= running[-1].level:
            return  # most steps
        if waiting[0].request.background is not background:
            return
        now = [s for s in running if s.request.background is background and not s.waits_for_token]
        budget -= sum([s.num_uncomputed for s in now])
        rows = blocks = 0  # as if the prefix cache had nothing for them
        for sequence in tuple(waiting[:ADMISSION_WINDOW]):
            if budget <= 0 or sequence.request.background is not background:
                break
            if self._restorer is not None and self._restorer.waits_for_another(sequence):
                continue
            rows += 1
            blocks += self._holdings.blocks_for(len(sequence.tokens)) + self._holdings.may_grow(sequence)
            budget -= len(sequence.tokens)
            while (
                running and sequence.level < running[-1].level and not self._holdings.would_have(rows, blocks, running)
            ):
                self._preempt_last()

    def _plan_class(self, chunks: list[Chunk], *, background: bool) -> list[Sequence]:
        """Adds the chunks of one class to those planned so far; returns the sequences that it admits."""
        budget = longest = self._config.token_budget
        if background:
            budget, longest = self._allowance(chunks)
        self._make_room(budget, background=background)
        partly_computed: list[Sequence] = []
        for sequence in tuple(self._running):
            if sequence.request.background is not background or sequence.row is None:
                continue  # without a row: preempted just now
            if sequence.waits_for_token:
                continue
            if sequence.num_uncomputed > 1 or sequence.restore is not None:
                partly_computed.append(sequence)
            elif budget > 0 and self._has_slot(sequence):
                chunks.append(self._plan(sequence, 1))
                budget -= 1
        for sequence in partly_computed:
            if sequence.row is not None:
                budget -= self._plan_prompt(sequence, min(budget, longest), chunks)
        return self._admit(budget, longest, chunks, background=background)

    def _allowance(self, online: list[Chunk]) -> tuple[int, int]:
        """Tokens of the background in a plan with these chunks, in all and of one sequence."""
        budget = left = self._config.token_budget - sum([chunk.length for chunk in online])
        if not self._running or self._running[0].request.background:
            return budget, budget
        if self._config.background_tokens is not None:
            left = min(budget, self._config.background_tokens)
        wide = max([chunk.length for chunk in online], default=1) > 1
        return left, 1 if self._narrow and not wide else left

    def _has_slot(self, sequence: Sequence) -> bool:
        """For its next token, for which it may get one more block. False: it was itself the last and is preempted."""
        if self._holdings.has_slot(sequence):
            return True
        while self.pool.num_free == 0:
            if self._preempt_last() is sequence:
                return False
        self._holdings.grow(sequence)
        return True

    def _preempt_last(self) -> Sequence:
        sequence = self._preempted = self._running.pop()
        self._holdings.release(sequence, SequenceStatus.WAITING)
        insort(self._waiting, sequence, key=_urgency)
        sequence.num_preemptions += 1
        self.preemptions += 1
        return sequence

    def _plan_prompt(self, sequence: Sequence, budget: int, chunks: list[Chunk]) -> int:
        """Adds the next chunk of a sequence that is not decoding, if there is one; returns its length."""
        if budget == 0 or sequence.waits_for_host:
            return 0
        if sequence.restore is not None:
            budget = min(budget, sequence.restore.start - sequence.num_computed)
        chunks.append(self._plan(sequence, budget))
        self._skip_restored(sequence)
        return chunks[-1].length

    def _skip_restored(self, sequence: Sequence) -> None:
        """Goes on behind what has come from the host, once what is before it is computed."""
        restore = sequence.restore
        if restore is None or not restore.landed or not sequence.waits_for_host:
            return
        sequence.num_computed, sequence.restore = restore.end, None
        self._prefixes.register(sequence)

    def _plan(self, sequence: Sequence, budget: int) -> Chunk:
        """The sequence's next chunk, ``budget`` tokens at most, which from here on counts as computed."""
        chunk = Chunk(sequence, sequence.num_computed, min(sequence.num_uncomputed, budget))
        sequence.num_computed = chunk.end
        if chunk.samples:
            sequence.num_pending += 1
        if chunk.end + chunk.samples == sequence.max_length:
            self._exhausted.append(sequence)
        if chunk.end % self._block_size < chunk.length:  # it reaches the end of a block
            self._prefixes.register(sequence)
        return chunk

    def _admit(self, budget: int, longest: int, chunks: list[Chunk], *, background: bool) -> list[Sequence]:
        """Lets waiting sequences of a class that fit run, in order; adds their first chunks, ``budget`` tokens at most
        and ``longest`` each."""
        admitted: list[Sequence] = []
        skipped: list[Sequence] = []
        if budget <= 0 or not self._holdings.has_row or not self._waiting:  # most steps: spare them the sum below
            return admitted
        growing = self._holdings.num_growing(self._running)
        position = 0  # behind the sequences passed over, which stay in the queue
        while (
            budget > 0 and self._holdings.has_row and position < len(self._waiting) and len(skipped) < ADMISSION_WINDOW
        ):
            sequence = self._waiting[position]
            # Everyone takes at least one block that is not shared.
            if self.pool.num_free <= growing or any(older.overtaken >= self._max_overtaken for older in skipped):
                break
            if sequence.request.background is not background or self._must_wait(sequence, skipped):
                break
            if self._restorer is not None and self._restorer.waits_for_another(sequence):
                position += 1  # not overtaken: no block would help it
                continue
            may_grow = self._holdings.may_grow(sequence)
            spare, free_tokens = growing + may_grow, max(1, self._config.token_budget - len(self._running))
            if not self._holdings.begin(sequence, spare, free_tokens=free_tokens, num_waiting=len(self._waiting) - 1):
                skipped.append(sequence)
                position += 1
                continue
            for older in skipped:
                older.overtaken += 1
            del self._waiting[position]
            sequence.overtaken, sequence.awaited = 0, None
            insort(self._running, sequence, key=_urgency)
            growing += may_grow
            admitted.append(sequence)
            budget -= self._plan_prompt(sequence, min(budget, longest), chunks)
        return admitted

    def _must_wait(self, sequence: Sequence, skipped: list[Sequence]) -> bool:
        """It, and all behind it: it was preempted just now, or a token of it is still in flight, or one of an earlier
        level does not fit."""
        preempted = self._preempted
        if sequence.num_pending:
            return True
        if preempted is not None and sequence.urgency >= preempted.urgency:
            return True
        return bool(skipped) and skipped[0].level < sequence.level

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.status is SequenceStatus.RUNNING:
            _remove(self._running, sequence)
        elif sequence.status is SequenceStatus.WAITING:
            _remove(self._waiting, sequence)
        del self._live[sequence.request_id]
        self.num_online -= not sequence.request.background
        self._holdings.release(sequence, SequenceStatus.FINISHED)
        sequence.num_pending = 0  # what is on the way is dropped
        sequence.finish_reason = reason


def _urgency(sequence: Sequence) -> tuple[bool, int, int]:
    return sequence.urgency


def _remove(queue: list[Sequence], sequence: Sequence) -> None:
    del queue[bisect_left(queue, sequence.urgency, key=_urgency)]
