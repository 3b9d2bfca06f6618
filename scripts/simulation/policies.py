"""What decides which tokens a step computes: the server's own scheduler, behind the interface that baselines share."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Protocol

from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import Outcome, StepPlan
from jaxgen.scheduling.fill import DEFAULT_FILL, FillRule
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
    """The server's own ``Scheduler``. Without ``prefix_caching`` nothing is found cached, whatever a prompt is."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: CacheConfig,
        *,
        narrow: bool = False,
        step_time: StepTimeModel | None = None,
        fill: FillRule = DEFAULT_FILL,
        prefix_caching: bool = False,
        runs_ahead: bool = True,
    ) -> None:
        """As the scheduler's own. ``runs_ahead``: as an accelerator's engine does, and a CPU's does not."""
        self.runs_ahead = runs_ahead
        config = replace(config, prefix_caching=prefix_caching)
        step_times = None if step_time is None else FixedStepTimes(step_time)
        policy = partial(ServicePolicy, step_times=step_times, fill=fill)
        self._scheduler = Scheduler(config, cache, policy=policy, narrow=narrow)
        assert isinstance(self._scheduler.policy, ServicePolicy)
        self._policy = self._scheduler.policy

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def prefix_queries(self) -> int:
        """Tokens that were looked up in the prefix cache."""
        return self._scheduler.prefix_queries

    @property
    def prefix_hits(self) -> int:
        """Those of them that were found."""
        return self._scheduler.prefix_hits

    def add(self, sequence: Sequence, now: float) -> None:
        self._scheduler.add(sequence, now)

    def schedule(self, now: float) -> StepPlan:
        return self._scheduler.schedule(now)

    def complete(self, plan: StepPlan, sampled: list[int]) -> list[Outcome]:
        return self._scheduler.complete(plan, sampled)

    def first_token(self, sequence: Sequence, now: float, under_way: float, before: Iterable[Sequence]) -> float:
        """Return the predicted seconds to the first token of a sequence that would arrive now; it is not changed.

        Steps in flight end in ``under_way`` seconds. ``before``: sequences that were not added yet, and come first.
        Raises ValueError without ``step_time``.
        """
        asked = Sequence(sequence.request, eos_token_ids=frozenset(), arrival=sequence.arrival, seed=0)
        asked.block_keys = sequence.block_keys  # they depend on its tokens only
        found = self._policy.prediction(asked, now, under_way)
        assert self._policy.step_time is not None
        return found.first_token + self._policy.step_time.prompt_seconds(sum(one.num_prompt for one in before))
