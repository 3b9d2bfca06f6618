"""Admit waiting sequences to a step, and preempt running ones for them. Host only, no jax, no clock."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from jaxgen.cache.cache_manager import KVCacheManager
from jaxgen.core.sequence import Sequence
from jaxgen.scheduling.policy import Fifo

MAX_OVERTAKEN = 16
"""How often later sequences may be admitted before a waiting sequence that does not fit yet."""

ADMISSION_WINDOW = 16
"""Most waiting sequences passed over in one step, so that a step's cost does not grow with the number waiting."""

OWED_WINDOW = 4
"""Most sequences that begin before all others in one step because they are owed a row."""


@dataclass(slots=True)
class Admission:
    """The admissions of one step, online or background: ``admit`` is called in the order of service.

    - A sequence is admitted with blocks for all its tokens, so that its prompt never runs out of blocks. One block
      stays free for each running sequence that may grow, so that the admission is not undone at once.
    - A sequence that does not fit is overtaken ``max_overtaken`` times at most.
    - No sequence is admitted ahead of one that may preempt it, nor behind one that was preempted in the same step.
    - The policy may keep a sequence and all behind it waiting.
    """

    policy: Fifo
    kv_cache: KVCacheManager
    max_overtaken: int
    free_tokens: int
    """Tokens of the step that decodes leave, for planning restores."""
    preempted: Sequence | None
    """The most urgent sequence that was preempted in this step."""
    admitted: list[Sequence] = field(default_factory=list)
    closed: bool = False
    """No further sequence may begin in this step."""
    round_over: bool = False
    """No sequence later in the order may begin in this round of the policy."""
    _skipped: list[Sequence] = field(default_factory=list)
    _growing: int = -1

    def __post_init__(self) -> None:
        queues = self.policy.queues
        if not queues.waiting or not self.kv_cache.has_row:
            self.closed = True  # most steps: spare them the sum below
        else:
            self._growing = self.kv_cache.num_growing(queues.running)
            self.closed = self._lacks_blocks

    def admit(self, sequence: Sequence, *, owed: bool = False) -> bool:
        """Admit a waiting sequence if it may begin; it then has a row and blocks. ``owed``: it waits for no others."""
        kv_cache = self.kv_cache
        if self.round_over:
            return False
        if not kv_cache.has_row or self._lacks_blocks:
            self.closed = True
            return False
        if self.policy.must_wait(sequence) if owed else self._must_wait(sequence):
            self.round_over = True
            return False
        if sequence.waits_for_token:
            return False  # not overtaken, as below
        num_others = len(self.policy.queues.waiting) - 1
        if kv_cache.restorer is not None and kv_cache.restorer.waits(sequence, num_others):
            return False  # not overtaken: no block would help it
        may_grow = kv_cache.may_grow(sequence)
        if not kv_cache.begin(sequence, self._growing + may_grow, free_tokens=self.free_tokens, num_waiting=num_others):
            self._skipped.append(sequence)
            self.closed = len(self._skipped) >= ADMISSION_WINDOW
            return False
        for older in self._skipped:
            older.standing.overtaken += 1
        sequence.standing.overtaken = 0
        self.policy.queues.begin(sequence)
        self._growing += may_grow
        self.admitted.append(sequence)
        return True

    @property
    def _lacks_blocks(self) -> bool:
        """Whether no sequence at all fits: each takes at least one block that is not shared."""
        return self.kv_cache.pool.num_free <= self._growing

    def _must_wait(self, sequence: Sequence) -> bool:
        """Whether the sequence and all behind it in the order of service must wait."""
        order_key = sequence.standing.order_key
        first = self.preempted is None or order_key < self.preempted.standing.order_key
        if first and sequence.num_pending:
            self.preempted = sequence  # in an earlier step, and a token of it is still in flight
        if self.preempted is not None and order_key >= self.preempted.standing.order_key:
            return True
        if any(s.standing.overtaken >= self.max_overtaken for s in self._skipped):
            return True
        policy = self.policy
        if policy.may_preempt_any and any(policy.may_preempt(s, sequence) for s in self._skipped):
            return True
        return policy.must_wait(sequence)


def make_room(
    policy: Fifo,
    kv_cache: KVCacheManager,
    tokens: int,
    *,
    background: bool,
    preempt: Callable[[Sequence], None],
) -> None:
    """Preempt running sequences, the last first, for waiting ones that may displace them and reach the step.

    That is where these would not fit, or would miss targets. None is preempted for one that would not fit even then,
    nor for those behind it. ``tokens``: the budget of the step.
    """
    queues, running = policy.queues, policy.queues.running
    if not policy.may_preempt_any or not running or not queues.any_waits(background=background):
        return  # most steps
    now = [s for s in running if s.request.background is background and not s.waits_for_token]
    tokens -= sum([s.is_decode for s in now])
    prompts = deque([s for s in now if not s.is_decode])
    coming: list[Sequence] = []
    for sequence in tuple(queues.waiting[:ADMISSION_WINDOW]):
        while prompts and prompts[0].standing.order_key < sequence.standing.order_key:
            tokens -= prompts.popleft().num_uncomputed
        if tokens <= 0 or sequence.request.background is not background:
            break
        if sequence.waits_for_token:
            continue
        if kv_cache.restorer is not None and kv_cache.restorer.waits(sequence, len(queues.waiting) - 1):
            continue
        coming.append(sequence)
        tokens -= len(sequence.tokens)
        leaving = [s for s in reversed(running) if policy.may_preempt(sequence, s)]
        if not kv_cache.has_room(coming, running) and not kv_cache.has_room(coming, running, leaving):
            break
        for other in leaving:
            if kv_cache.has_room(coming, running) and not policy.misses_targets([*running, *coming]):
                break
            preempt(other)


def make_room_for_owed(
    policy: Fifo, kv_cache: KVCacheManager, preempt: Callable[[Sequence], None], *, background: bool
) -> list[Sequence]:
    """Return the waiting sequences that begin before others of their kind, none where there is room for all that wait.

    The policy owes them a row: each is the first of a tenant without one. Running sequences are preempted for them only
    if that makes room. For blocks, they are preempted only from tenants that keep as many as the newcomer takes.
    """
    queues = policy.queues
    coming: list[Sequence] = []
    has_preempted = False
    for sequence in policy.owed(OWED_WINDOW, background=background):
        waits = kv_cache.restorer is not None and kv_cache.restorer.waits(sequence, len(queues.waiting) - 1)
        if waits or sequence.num_pending or sequence.waits_for_token or policy.must_wait(sequence):
            continue
        leaving = _leaving_for(sequence, coming, policy, kv_cache)
        if leaving is None:
            continue
        coming.append(sequence)
        for other in leaving:
            preempt(other)
            has_preempted = True
    return coming if has_preempted or kv_cache.num_free_rows < len(queues.waiting) else []


def _leaving_for(
    sequence: Sequence, before: list[Sequence], policy: Fifo, kv_cache: KVCacheManager
) -> list[Sequence] | None:
    """Return the running sequences to preempt so that a sequence has room behind those ``before``; None: in vain."""
    running, coming = policy.queues.running, [*before, sequence]
    if kv_cache.has_room(coming, running):
        return []
    takes = kv_cache.blocks_for(len(sequence.tokens))
    held: Counter[str] = Counter()
    kind = sequence.request.background
    for other in running:
        held[other.request.tenant] += other.blocks.num_held * (other.request.background is kind)
    leaving: list[Sequence] = []
    for other in policy.may_give(sequence):
        tenant, alike = other.request.tenant, other.request.background is kind
        held[tenant] -= other.blocks.num_held * alike
        lacks_row = kv_cache.num_free_rows + len(leaving) < len(coming)
        if alike and not lacks_row and held[tenant] < takes:
            continue
        leaving.append(other)
        if kv_cache.has_room(coming, running, leaving):
            return leaving
    return None
