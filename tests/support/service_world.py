"""Sequences of tenants and classes, and a scheduler whose steps take virtual time."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.errors import WouldBeLateError
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Sequence
from jaxgen.core.service_class import ServiceClass
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.scheduling.service.policy import ServicePolicy
from jaxgen.scheduling.step_time import FixedStepTimes, StepTimeModel
from tests.support.small_scheduler import ARRIVALS, TOKEN


def policy_with(step_time: StepTimeModel | None) -> partial[ServicePolicy]:
    """The policy of a server whose steps take what the model says."""
    return partial(ServicePolicy, step_times=None if step_time is None else FixedStepTimes(step_time))


def sequence_for(prompt: int = 4, max_tokens: int = 4, name: str = "", **fields: Any) -> Sequence:
    """A new one of a request with these fields, whose prompt is like no other's."""
    arrival = next(ARRIVALS)
    tokens = tuple(range(arrival * 10_000, arrival * 10_000 + prompt))
    request = Request(name or f"r{arrival}", tokens, SamplingParams(max_tokens=max_tokens, ignore_eos=True), **fields)
    return Sequence(request, eos_token_ids=frozenset(), arrival=arrival, seed=0)


@dataclass
class Watched:
    """What a sequence got, and when."""

    sequence: Sequence
    arrived: float
    tokens: list[float] = field(default_factory=list)

    @property
    def first_token(self) -> float:
        return self.tokens[0] - self.arrived

    @property
    def longest_gap(self) -> float:
        return max([b - a for a, b in zip(self.tokens, self.tokens[1:], strict=False)], default=0.0)


class VirtualServer:
    """A scheduler, each of whose steps takes what ``step_time`` says, one plan in flight at a time."""

    def __init__(
        self, step_time: StepTimeModel, *, rows: int = 16, num_blocks: int = 4096, longest: int = 4096
    ) -> None:
        config = SchedulerConfig(step_time.token_budget, rows, longest, prefix_caching=False)
        cache = CacheConfig(block_size=16, num_blocks=num_blocks)
        self.scheduler = Scheduler(config, cache, policy=policy_with(step_time))
        self.step_time = step_time
        self.now = 0.0
        self.computed: dict[str, int] = {}
        """Tokens by tenant."""
        self.watched: dict[Sequence, Watched] = {}

    def add(self, prompt: int = 4, max_tokens: int = 4, **fields: Any) -> Watched:
        """Raises what ``Scheduler.add`` does."""
        sequence = sequence_for(prompt, max_tokens, **fields)
        self.scheduler.add(sequence, self.now)
        self.watched[sequence] = Watched(sequence, self.now)
        return self.watched[sequence]

    def try_to_add(self, prompt: int, max_tokens: int, **fields: Any) -> Watched | None:
        """None where it is refused as late."""
        try:
            return self.add(prompt, max_tokens, **fields)
        except WouldBeLateError:
            return None

    def step(self) -> None:
        """A plan that is empty although there is work fails."""
        plan = self.scheduler.schedule(self.now)
        assert plan.chunks
        self.now += self.step_time.wide.seconds(plan.num_tokens, plan.num_positions, plan.num_contexts)
        for chunk in plan.chunks:
            tenant = chunk.sequence.request.tenant
            self.computed[tenant] = self.computed.get(tenant, 0) + chunk.length
        for outcome in self.scheduler.complete(plan, [TOKEN] * plan.num_samples):
            if outcome.token is not None:
                self.watched[outcome.sequence].tokens.append(self.now)

    def run_until(self, now: float) -> None:
        """While there is work."""
        while self.now < now and self.scheduler.has_work:
            self.step()
        self.now = max(now, self.now)


def promised(name: str = "promised", first: float | None = 1.0, **fields: Any) -> ServiceClass:
    return ServiceClass(name=name, first_token_seconds=first, **fields)
