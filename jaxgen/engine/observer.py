"""What watches an engine: it is told of each request and each step, in the engine's thread. Host only, no jax."""

from collections import abc
from typing import NamedTuple, override

from jaxgen.core.request import TokenEvent
from jaxgen.core.sequence import Chunk, Restore, Sequence
from jaxgen.core.step_plan import Outcome, StepPlan
from jaxgen.scheduling.cost_model import StepSample


class MeasuredStep(NamedTuple):
    """A step whose output was read. Times are seconds by the engine's clock."""

    number: int
    """Of the engine's steps, from 1."""
    plan: StepPlan
    pieces: tuple[Chunk, ...]
    """Its chunks of prompts, and of what is computed again."""
    began: float
    """When it was dispatched, or when the step before it was read, if that was later."""
    ended: float
    predicted: float
    """Seconds that it was expected to take."""
    width: int
    """Tokens that it computed, including padding."""
    narrow: bool
    """Whether the narrow program ran it."""
    projected: int
    """Tokens that were projected right before it."""

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def sample(self) -> StepSample:
        """What a model of step times learns from it."""
        return StepSample(self.plan.num_tokens, self.plan.num_positions, self.seconds, self.plan.num_contexts)


class Observer:
    """A listener that is told what happens to requests and steps, in this order.

    It overrides the methods that it wants.
    """

    def queued(self, sequence: Sequence, now: float) -> None:
        """Note that a request was accepted."""

    def planned(self, plan: StepPlan, now: float) -> None:
        """Note the plan of the next step; one without chunks is not run. ``now``: when the call of ``step`` began."""

    def restored(self, restore: Restore, *, whole: bool) -> None:
        """Note the end of copies from host memory, before the scheduler knows; not ``whole``: nothing came."""

    def read(self, step: MeasuredStep) -> None:
        """Note that the output of a step is on the host, before the scheduler takes its tokens."""

    def completed(self, step: MeasuredStep, outcomes: abc.Sequence[Outcome], events: abc.Sequence[TokenEvent]) -> None:
        """Note that the scheduler has taken a step's tokens. ``outcomes``: also of forced tokens; an event for each."""

    def ended(self, sequence: Sequence, reason: str) -> None:
        """Note the end of a request, and forget it. This may come twice, and also for a request that was refused."""

    def failed(self) -> None:
        """Note an error: what is planned or in flight is void, and nothing is cached."""


class Observers(Observer):
    """Tells several observers, one after the other."""

    def __init__(self, *observers: Observer) -> None:
        self.each = observers

    @override
    def queued(self, sequence: Sequence, now: float) -> None:
        for observer in self.each:
            observer.queued(sequence, now)

    @override
    def planned(self, plan: StepPlan, now: float) -> None:
        for observer in self.each:
            observer.planned(plan, now)

    @override
    def restored(self, restore: Restore, *, whole: bool) -> None:
        for observer in self.each:
            observer.restored(restore, whole=whole)

    @override
    def read(self, step: MeasuredStep) -> None:
        for observer in self.each:
            observer.read(step)

    @override
    def completed(self, step: MeasuredStep, outcomes: abc.Sequence[Outcome], events: abc.Sequence[TokenEvent]) -> None:
        for observer in self.each:
            observer.completed(step, outcomes, events)

    @override
    def ended(self, sequence: Sequence, reason: str) -> None:
        for observer in self.each:
            observer.ended(sequence, reason)

    @override
    def failed(self) -> None:
        for observer in self.each:
            observer.failed()
