"""What decides which tokens a step computes: the server's own scheduler, behind the interface that baselines share."""

from dataclasses import replace
from functools import partial
from typing import Protocol

from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import Outcome, StepPlan
from jaxgen.scheduling.prefill_limits import DEFAULT_LIMITS, PrefillLimits
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.scheduling.service.policy import ServicePolicy
from jaxgen.scheduling.step_time import FixedStepTimes, StepTimeModel


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
    """The server's own ``Scheduler``, without prefix caching."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: CacheConfig,
        *,
        narrow: bool = False,
        step_time: StepTimeModel | None = None,
        runs_ahead: bool = True,
        limits: PrefillLimits = DEFAULT_LIMITS,
    ) -> None:
        """As the scheduler's own. ``runs_ahead``: as an accelerator's engine does, and a CPU's does not."""
        self.runs_ahead = runs_ahead
        config = replace(config, prefix_caching=False)
        step_times = None if step_time is None else FixedStepTimes(step_time)
        policy = partial(ServicePolicy, step_times=step_times, limits=limits)
        self._scheduler = Scheduler(config, cache, policy=policy, narrow=narrow)

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def add(self, sequence: Sequence, now: float) -> None:
        self._scheduler.add(sequence, now)

    def schedule(self, now: float) -> StepPlan:
        return self._scheduler.schedule(now)

    def complete(self, plan: StepPlan, sampled: list[int]) -> list[Outcome]:
        return self._scheduler.complete(plan, sampled)
