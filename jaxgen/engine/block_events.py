"""Hand on what the cache has noted of its blocks, once the steps that compute them have ended.

Runs in the engine's thread; the sink sends from a thread of its own. Host only, no jax.
"""

from collections import abc, deque
from typing import override

from jaxgen.cache.block_log import BlockEvent, BlockEventSink, BlockLog
from jaxgen.core.request import TokenEvent
from jaxgen.core.stats import KVEventStats
from jaxgen.core.step_plan import Outcome, StepPlan
from jaxgen.engine.observer import MeasuredStep, Observer


class NoBlockEvents(Observer):
    """Block events where nobody wants them: nothing is noted, and no step waits for it."""

    log: BlockLog | None = None

    @property
    def pending(self) -> bool:
        """Whether anything waits to be published: then steps must go on."""
        return False

    def stats(self) -> KVEventStats | None:
        return None

    def close(self, seconds: float) -> None:
        """Send the events that are left, for at most the given seconds."""


NO_EVENTS = NoBlockEvents()


class BlockEvents(NoBlockEvents):
    """Publishes a log of blocks in its order, each piece when the step that was planned with it has ended.

    The cache registers blocks when a step is planned; an index must not point at what may never be computed.
    """

    def __init__(self, sink: BlockEventSink) -> None:
        self.log = self._log = BlockLog()
        self._sink = sink
        self._in_flight: deque[list[BlockEvent]] = deque()

    @property
    def pending(self) -> bool:
        return bool(self._in_flight) or not self._log.is_empty

    @override
    def planned(self, plan: StepPlan, now: float) -> None:
        """Take what was noted up to a plan; it waits for the plan's step, or else for the one in flight."""
        noted = self._log.take()
        if plan.chunks:
            self._in_flight.append(noted)
        elif self._in_flight:
            self._in_flight[-1] += noted
        else:
            self._publish(noted)

    @override
    def completed(self, step: MeasuredStep, outcomes: abc.Sequence[Outcome], events: abc.Sequence[TokenEvent]) -> None:
        """Publish what waited for the oldest step."""
        self._publish(self._in_flight.popleft())

    @override
    def failed(self) -> None:
        """Publish that everything is forgotten, which the log says; what waited for steps is void."""
        self._in_flight.clear()
        self._publish(self._log.take())

    def stats(self) -> KVEventStats:
        return self._sink.stats()

    def close(self, seconds: float) -> None:
        self._sink.close(seconds)

    def _publish(self, events: list[BlockEvent]) -> None:
        if events:
            self._sink.publish(events)
