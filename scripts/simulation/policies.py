"""What decides which tokens a step computes: the server's own scheduler, behind the interface that baselines share."""

from dataclasses import replace
from typing import Protocol

from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import Outcome, StepPlan
from jaxgen.scheduling.fill import DEFAULT_FILL, FillRule
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.scheduling.service.policy import ServicePolicy
from jaxgen.scheduling.step_time import StepTimeModel


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
    """The server's own ``Scheduler``. Prompts are taken to begin differently: nothing is found cached."""

    runs_ahead = True

    def __init__(
        self,
        config: SchedulerConfig,
        cache: CacheConfig,
        *,
        narrow: bool = False,
        step_time: StepTimeModel | None = None,
        fill: FillRule = DEFAULT_FILL,
    ) -> None:
        """As the scheduler's own."""
        config = replace(config, prefix_caching=False)
        self._scheduler = Scheduler(config, cache, policy=ServicePolicy, narrow=narrow)
        policy = self._scheduler.policy
        assert isinstance(policy, ServicePolicy)
        policy.step_time, policy.fill = step_time, fill

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def add(self, sequence: Sequence, now: float) -> None:
        self._scheduler.add(sequence, now)

    def schedule(self, now: float) -> StepPlan:
        return self._scheduler.schedule(now)

    def complete(self, plan: StepPlan, sampled: list[int]) -> list[Outcome]:
        return self._scheduler.complete(plan, sampled)
