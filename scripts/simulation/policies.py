"""What decides which tokens a step computes: the server's own scheduler, behind the interface that baselines share."""

from dataclasses import replace
from typing import Protocol

from jaxgen.config import CacheConfig, SchedulerConfig
from jaxgen.pace import Pace
from jaxgen.scheduler import Scheduler
from jaxgen.sequence import Sequence
from jaxgen.step_plan import Outcome, StepPlan


class Policy(Protocol):
    runs_ahead: bool
    """Whether a plan is made while the one before it is in flight, as the engine does."""

    @property
    def has_work(self) -> bool: ...

    def add(self, sequence: Sequence, now: float) -> None:
        """Raises RequestRefusedError for one that it does not take."""
        ...

    def schedule(self, now: float) -> StepPlan:
        """Empty when there is nothing to compute."""
        ...

    def complete(self, plan: StepPlan, sampled: list[int]) -> list[Outcome]:
        """Takes a token for each chunk that samples, in the plan's order."""
        ...


class SplitFuse:
    """``jaxgen.scheduler.Scheduler`` itself. Prompts are taken to begin differently: nothing is found cached."""

    runs_ahead = True

    def __init__(
        self, config: SchedulerConfig, cache: CacheConfig, *, narrow: bool = False, pace: Pace | None = None
    ) -> None:
        """As the scheduler's own."""
        self._scheduler = Scheduler(replace(config, prefix_caching=False), cache, narrow=narrow, pace=pace)

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def add(self, sequence: Sequence, now: float) -> None:
        self._scheduler.add(sequence, now)

    def schedule(self, now: float) -> StepPlan:
        return self._scheduler.schedule(now)

    def complete(self, plan: StepPlan, sampled: list[int]) -> list[Outcome]:
        return self._scheduler.complete(plan, sampled)
