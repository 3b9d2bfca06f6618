"""Dynamic SplitFuse: which tokens of which sequences the next step computes. Host only, no jax, no clock, no thread."""

from bisect import bisect_left, insort
from dataclasses import dataclass

from jaxgen.block_pool import BlockPool
from jaxgen.config import CacheConfig, SchedulerConfig
from jaxgen.request import FinishReason, RequestRefusedError
from jaxgen.sequence import Chunk, Sequence, SequenceStatus

MAX_OVERTAKEN = 16
"""How often younger sequences may be admitted before a waiting one that does not fit yet."""

ADMISSION_WINDOW = 16
"""Most waiting sequences passed over in one step, so that a step's cost does not grow with the number waiting."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step computes: chunks of length 1 first, then the longer ones; at most one chunk of a sequence."""

    chunks: tuple[Chunk, ...]

    @property
    def num_tokens(self) -> int:
        return sum(chunk.length for chunk in self.chunks)

    @property
    def num_samples(self) -> int:
        return sum(chunk.samples for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step brought a sequence: a token, an end, or both. ``row`` is the index of its chunk in the plan."""

    sequence: Sequence
    row: int
    token: int | None
    finish_reason: FinishReason | None


class Scheduler:
    """Fills every step's token budget: one token of each decoding sequence, then pieces of prompts.

    Dynamic SplitFuse of DeepSpeed-FastGen (arXiv 2401.08671), with other rules for memory, because FastGen's can lock
    (all prompts partly computed, no block free) and its queue stands still behind one prompt that does not fit:

    - A sequence is admitted with the blocks of all its known tokens, so a prompt never runs out half-way.
    - Admission leaves a block free for each sequence that may still grow, so that it is not undone at once.
    - When blocks run out all the same, the youngest running sequence is preempted: it loses its blocks, waits at its
      place by arrival and is computed anew. So the oldest running sequence advances in every step, and the oldest of
      all is never preempted.
    - A waiting sequence that does not fit is passed over, ``max_overtaken`` times at most.

    If anything runs or waits, the plan is not empty. Every running sequence is in every plan: decodes leave the budget
    a token (max_num_seqs <= token_budget), and one prompt at most is partly computed, since none is admitted after one
    that the budget cuts.

    The order of calls is ``schedule``, then ``complete`` or ``fail`` with that plan; ``add`` and ``abort`` may come in
    between.
    """

    def __init__(self, config: SchedulerConfig, cache: CacheConfig, *, max_overtaken: int = MAX_OVERTAKEN) -> None:
        self.pool = BlockPool(cache.num_blocks)
        self.preemptions = 0
        self._config = config
        self._block_size = cache.block_size
        self._max_overtaken = max_overtaken
        self._running: list[Sequence] = []  # this and the next: oldest first
        self._waiting: list[Sequence] = []
        self._live: dict[str, Sequence] = {}
        self._free_rows = list(range(config.max_num_seqs - 1, -1, -1))
        self._last_arrival: int | None = None

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
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
        blocks = self._blocks_for(sequence.max_cached)
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
        self._waiting.append(sequence)

    def schedule(self) -> StepPlan:
        """Plans the next step; the plan is empty only when there is no work. May preempt."""
        preemptions = self.preemptions
        chunks = self._decodes()
        budget = self._config.token_budget - len(chunks)
        for sequence in self._running:
            if budget == 0:
                break
            if not sequence.is_decode:
                chunks.append(_next_chunk(sequence, budget))
                budget -= chunks[-1].length
        # Right after a preemption an admission would only bring back what had to go.
        if self.preemptions == preemptions:
            chunks += self._admit(budget)
        chunks.sort(key=lambda chunk: chunk.length > 1)
        return StepPlan(tuple(chunks))

    def complete(self, plan: StepPlan, sampled: list[int]) -> list[Outcome]:
        """Takes a step's result: one token per chunk that samples, in the plan's order.

        Returns an outcome for each sequence that got a token or ended. One aborted since the plan was made gets none.
        Raises ValueError if the number of tokens is wrong, RuntimeError if a chunk is not the next of its sequence.
        """
        if len(sampled) != plan.num_samples:
            raise ValueError(f"the plan samples {plan.num_samples} tokens, got {len(sampled)}")
        tokens = iter(sampled)
        outcomes = []
        for row, chunk in enumerate(plan.chunks):
            sequence = chunk.sequence
            token = next(tokens) if chunk.samples else None
            if sequence.status is SequenceStatus.FINISHED:
                continue
            if sequence.status is SequenceStatus.WAITING or sequence.num_computed != chunk.start:
                raise RuntimeError(f"stale plan: {sequence.request_id!r} does not go on at token {chunk.start}")
            sequence.num_computed = chunk.end
            if sequence.num_uncomputed > 0:
                continue
            if token is not None:
                sequence.tokens.append(token)
            reason = sequence.stop_reason()
            if reason is not None:
                self._end(sequence, reason)
            outcomes.append(Outcome(sequence, row, token, reason))
        return outcomes

    def abort(self, request_id: str) -> bool:
        """Ends a sequence, waiting or running. False if none such lives."""
        sequence = self._live.get(request_id)
        if sequence is None:
            return False
        self._end(sequence, FinishReason.ABORT)
        return True

    def fail(self, plan: StepPlan) -> list[Outcome]:
        """Ends every sequence of a plan whose step raised, with ERROR.

        A plan has all that run, so no sequence is left that relies on a cache the step may have lost.
        """
        outcomes = []
        for row, chunk in enumerate(plan.chunks):
            if chunk.sequence.status is not SequenceStatus.FINISHED:
                self._end(chunk.sequence, FinishReason.ERROR)
                outcomes.append(Outcome(chunk.sequence, row, None, FinishReason.ERROR))
        return outcomes

    def _decodes(self) -> list[Chunk]:
        """A chunk of 1 for each running sequence with one token left, oldest first; preempts for want of a block."""
        chunks = []
        for sequence in tuple(self._running):
            if sequence.status is SequenceStatus.WAITING:
                break  # preempted, and so is every younger one
            if sequence.is_decode and self._grow(sequence):
                chunks.append(_next_chunk(sequence, 1))
        return chunks

    def _grow(self, sequence: Sequence) -> bool:
        """Gives a running sequence the blocks of all its tokens. False: it was itself the youngest and is preempted."""
        missing = self._blocks_for(len(sequence.tokens)) - len(sequence.block_table)
        while self.pool.num_free < missing:
            if self._preempt_youngest() is sequence:
                return False
        sequence.block_table += self.pool.allocate(missing)
        return True

    def _preempt_youngest(self) -> Sequence:
        sequence = self._running.pop()
        self._release(sequence)
        sequence.num_computed = 0
        insort(self._waiting, sequence, key=_arrival)
        self.preemptions += 1
        return sequence

    def _admit(self, budget: int) -> list[Chunk]:
        """First chunks, ``budget`` tokens at most, of waiting sequences that fit, oldest first."""
        chunks: list[Chunk] = []
        skipped: list[Sequence] = []
        if budget == 0 or not self._free_rows or not self._waiting:  # most steps: spare them the sum below
            return chunks
        growing = sum(map(self._may_grow, self._running))
        # The sequences passed over stay at the front of the queue, so the next to look at stands behind them.
        while budget > 0 and self._free_rows and len(skipped) < min(ADMISSION_WINDOW, len(self._waiting)):
            if any(sequence.overtaken >= self._max_overtaken for sequence in skipped):
                break
            sequence = self._waiting[len(skipped)]
            needed = self._blocks_for(len(sequence.tokens))
            if needed + growing + self._may_grow(sequence) > self.pool.num_free:
                skipped.append(sequence)
                continue
            for older in skipped:
                older.overtaken += 1
            del self._waiting[len(skipped)]
            sequence.block_table += self.pool.allocate(needed)
            sequence.sampler_row = self._free_rows.pop()
            sequence.overtaken = 0
            insort(self._running, sequence, key=_arrival)
            growing += self._may_grow(sequence)
            chunks.append(_next_chunk(sequence, budget))
            budget -= chunks[-1].length
        return chunks

    def _may_grow(self, sequence: Sequence) -> bool:
        """Whether it may come to need more blocks than those of its tokens so far."""
        return self._blocks_for(sequence.max_cached) > self._blocks_for(len(sequence.tokens))

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        queue = self._running if sequence.status is SequenceStatus.RUNNING else self._waiting
        del queue[bisect_left(queue, sequence.arrival, key=_arrival)]
        del self._live[sequence.request_id]
        self._release(sequence)
        sequence.finish_reason = reason

    def _release(self, sequence: Sequence) -> None:
        self.pool.free(sequence.block_table)
        sequence.block_table.clear()
        if sequence.sampler_row is not None:
            self._free_rows.append(sequence.sampler_row)
            sequence.sampler_row = None


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival


def _next_chunk(sequence: Sequence, budget: int) -> Chunk:
    return Chunk(sequence, sequence.num_computed, min(sequence.num_uncomputed, budget))
