"""Which waiting sequences begin to run in a step, and whose place they take. Host only, no jax, no clock."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from jaxgen.cache.cache_manager import KVCacheManager
from jaxgen.core.sequence import Level, Sequence
from jaxgen.scheduling.queues import RequestQueues, may_displace
from jaxgen.scheduling.step_time import MARGIN, StepTimeModel, targets_between

MAX_OVERTAKEN = 16
"""How often others may be admitted before a waiting sequence that comes before them and does not fit yet."""

ADMISSION_WINDOW = 16
"""Most waiting sequences passed over in one step, so that a step's cost does not grow with the number waiting."""


@dataclass(slots=True)
class Admission:
    """Of one step and one class, background or not: asked of waiting sequences in the order of service.

    - A sequence is admitted with the blocks of all its tokens, so a prompt never runs out half-way, and leaves a block
      free for each sequence that may still grow, so that it is not undone at once.
    - One that does not fit is passed over by others, ``max_overtaken`` times at most.
    - None is admitted before one that may take its place, or behind one that was preempted in the same step.
    - None to which nothing was promised is admitted where that would break a promise of times between tokens.
    """

    queues: RequestQueues
    kv_cache: KVCacheManager
    step_time: StepTimeModel | None
    max_overtaken: int
    free_tokens: int
    """Of the step, for those that are restored."""
    preempted: Sequence | None
    """The first, in the order, of those preempted in this step."""
    admitted: list[Sequence] = field(default_factory=list)
    closed: bool = False
    """Nobody else may begin in this step."""
    turn_over: bool = False
    """Nor one that comes after those asked of so far, in the order of service."""
    _skipped: list[Sequence] = field(default_factory=list)
    _growing: int = -1

    def __post_init__(self) -> None:
        if not self.queues.waiting or not self.kv_cache.has_row:
            self.closed = True  # most steps: spare them the sum below
        else:
            self._growing = self.kv_cache.num_growing(self.queues.running)
            self.closed = self._lacks_blocks

    def admit(self, sequence: Sequence) -> bool:
        """Whether it begins to run: then it has a row and blocks."""
        kv_cache = self.kv_cache
        if self.turn_over:
            return False
        if not kv_cache.has_row or self._lacks_blocks:
            self.closed = True
            return False
        if self._must_wait(sequence):
            self.turn_over = True
            return False
        if kv_cache.restorer is not None and kv_cache.restorer.waits_for_another(sequence):
            return False  # not overtaken: no block would help it
        may_grow = kv_cache.may_grow(sequence)
        num_others = len(self.queues.waiting) - 1
        if not kv_cache.begin(sequence, self._growing + may_grow, free_tokens=self.free_tokens, num_waiting=num_others):
            self._skipped.append(sequence)
            self.closed = len(self._skipped) >= ADMISSION_WINDOW
            return False
        for older in self._skipped:
            older.overtaken += 1
        sequence.overtaken, sequence.awaited = 0, None
        self.queues.begin(sequence)
        self._growing += may_grow
        self.admitted.append(sequence)
        return True

    @property
    def _lacks_blocks(self) -> bool:
        """For anyone: everyone takes at least one that is not shared."""
        return self.kv_cache.pool.num_free <= self._growing

    def _must_wait(self, sequence: Sequence) -> bool:
        """It, and in the order of service all behind it."""
        first = self.preempted is None or sequence.urgency < self.preempted.urgency
        if first and sequence.num_pending:
            self.preempted = sequence  # in an earlier step, and a token of it is still in flight
        if self.preempted is not None and sequence.urgency >= self.preempted.urgency:
            return True
        if any(s.overtaken >= self.max_overtaken for s in self._skipped):
            return True
        if not self.queues.is_level and any(may_displace(s, sequence) for s in self._skipped):
            return True
        if sequence.level is Level.PROMISED or not self.queues.has_promised:
            return False
        return breaks_promises([*self.queues.running, sequence], self.step_time)


def make_room(
    queues: RequestQueues,
    kv_cache: KVCacheManager,
    step_time: StepTimeModel | None,
    tokens: int,
    *,
    background: bool,
    preempt: Callable[[Sequence], None],
) -> None:
    """Preempts running sequences, the last first, where waiting ones of this class that may displace them would not
    fit, or would get their tokens later than promised, as far as ``tokens`` reach."""
    running = queues.running
    if queues.is_level or not running or not queues.waiting or queues.waiting[0].request.background is not background:
        return  # most steps
    now = [s for s in running if s.request.background is background and not s.waits_for_token]
    tokens -= sum([s.is_decode for s in now])
    prompts = deque([s for s in now if not s.is_decode])
    coming: list[Sequence] = []
    blocks = 0  # as if the prefix cache had nothing for them
    for sequence in tuple(queues.waiting[:ADMISSION_WINDOW]):
        while prompts and prompts[0].urgency < sequence.urgency:
            tokens -= prompts.popleft().num_uncomputed
        if tokens <= 0 or sequence.request.background is not background:
            break
        if kv_cache.restorer is not None and kv_cache.restorer.waits_for_another(sequence):
            continue
        coming.append(sequence)
        blocks += kv_cache.blocks_for(len(sequence.tokens)) + kv_cache.may_grow(sequence)
        tokens -= len(sequence.tokens)
        for other in [s for s in reversed(running) if may_displace(sequence, s)]:
            if kv_cache.would_have(len(coming), blocks, running) and not breaks_promises(
                [*running, *coming], step_time
            ):
                break
            preempt(other)


def breaks_promises(sequences: list[Sequence], step_time: StepTimeModel | None) -> bool:
    """Whether decodes of these take longer than a class of theirs promises, and those to which something was promised
    would not alone."""
    targets = targets_between(sequences)
    if step_time is None or not targets:
        return False
    together = _decode_seconds(step_time, sequences)
    if together <= MARGIN * targets[0]:
        return False
    alone = _decode_seconds(step_time, [s for s in sequences if s.level is Level.PROMISED])
    return any(alone <= MARGIN * target < together for target in targets)


def _decode_seconds(step_time: StepTimeModel, sequences: list[Sequence]) -> float:
    return step_time.decode_seconds(len(sequences), sum([s.num_computed for s in sequences]))
