"""A caller's book of a scheduler: which sequences live, what came for them, and which plans are in flight."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.request import FinishReason
from jaxgen.core.sequence import Sequence, SequenceStatus
from jaxgen.core.step_plan import StepPlan
from jaxgen.scheduling.background_hold import HOLD_SECONDS
from jaxgen.scheduling.scheduler import Scheduler
from tests.support.scheduler_world import Device, Host


@dataclass
class Book:
    """With what surrounds the scheduler and what it was made with."""

    scheduler: Scheduler
    cache: CacheConfig
    config: SchedulerConfig
    max_overtaken: int
    narrow: bool
    copies_blocks: bool
    device: Device
    host: Host | None
    plain: bool
    """All its requests are one tenant's, of one class that promises nothing."""
    seen: Counter[str]
    """How often each event that a load should bring has come."""
    most_prompt_tokens: int | None = None
    """Of a step, for the online and for the background; None: what the policy says."""
    now: float = 0.0
    """Of the clock that the scheduler is told."""
    held_until: float = -inf
    """When the background may run again, as far as the last plan says."""
    live: dict[str, Sequence] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    in_flight: list[tuple[StepPlan, list[int]]] = field(default_factory=list)
    """Plans that are not completed, and what the device sampled for each."""
    first_hits: dict[str, int] = field(default_factory=dict)
    """By request id: the tokens that it found, or that came from the host, before it was ever preempted."""
    arrived: defaultdict[Sequence, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Start and end of each stretch of tokens that came from the host."""

    def end(self, sequence: Sequence, reason: FinishReason) -> None:
        """Once for each, and it holds nothing any more."""
        assert sequence.request_id not in self.ended
        self.ended.add(sequence.request_id)
        del self.live[sequence.request_id]
        assert (sequence.status, sequence.finish_reason) == (SequenceStatus.FINISHED, reason)
        assert (sequence.blocks.table, sequence.blocks.windows) == ([], ())
        assert (sequence.row, sequence.num_pending) == (None, 0)

    def running(self) -> list[Sequence]:
        return _in_order(sequence for sequence in self.live.values() if sequence.row is not None)

    def waiting(self) -> list[Sequence]:
        return _in_order(s for s in self.live.values() if s.status is SequenceStatus.WAITING)

    def ending(self) -> list[Sequence]:
        return [sequence for sequence in self.live.values() if sequence.status is SequenceStatus.ENDING]

    def restoring(self) -> list[str]:
        """The names of those for which blocks come from the host."""
        return [name for name, sequence in self.live.items() if sequence.blocks.restore is not None]

    def has_work(self) -> bool:
        """Whether any sequence wants a step, and is not held."""
        held = self.background_is_held()
        wanting = [s for s in self.live.values() if s.status is not SequenceStatus.ENDING]
        return any(not (held and s.request.background) for s in wanting)

    def plan(self) -> StepPlan:
        """Return the scheduler's next plan, and note for how long it holds the background."""
        if self.config.background_tokens == 0 and any(not s.request.background for s in self.live.values()):
            self.held_until = self.now + HOLD_SECONDS
        return self.scheduler.schedule(self.now)

    def background_is_held(self) -> bool:
        return self.now < self.held_until

    def background_is_bounded(self) -> bool:
        online = any(not sequence.request.background for sequence in self.running())
        return self.background_is_held() or (online and (self.narrow or self.config.background_tokens is not None))

    def blocks(self, tokens: int) -> int:
        """How many hold so many tokens."""
        return -(-tokens // self.cache.block_size)


def level(sequence: Sequence) -> tuple[bool, int]:
    """Of which the lower is served first."""
    return sequence.request.background, sequence.request.priority


def _in_order(sequences: Iterable[Sequence]) -> list[Sequence]:
    return sorted(sequences, key=lambda s: s.standing.order_key)
