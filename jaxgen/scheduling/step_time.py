"""Model the time of steps, and bound the prompt tokens of a step by it. Host only, no jax, no clock."""

from collections import abc
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from jaxgen.core.sequence import Chunk, Sequence
from jaxgen.core.step_plan import StepPlan
from jaxgen.scheduling.cost_model import CostEstimator, LinearCost, StepSample

MARGIN = 0.9
"""Share of an inter-token target that a planned step may take: the model predicts a mean, and steps vary."""
LEAST_CHUNK = 16
"""Fewest prompt tokens worth cutting a step for. Where a target leaves room for fewer, the step is filled: prompts in
such small pieces would make as many tokens late, over more steps."""

FIRST_SPREAD = 1.5
"""The estimator's spread before it has seen steps that serve requests.

The few steps measured for it ran with nothing else at work. They say little of the 99th percentile next to a server and
its clients.
"""
SPREAD_STEP = 0.05
"""Step size of the estimator's spread, for a step slower than predicted."""

NO_COST = LinearCost(0.0)


@dataclass(frozen=True, slots=True)
class Decodes:
    """``count`` sequences that decode in a step with prompts. ``contexts``: their context lengths, summed. ``targets``:
    their inter-token targets in seconds, the shortest first."""

    count: int = 0
    contexts: int = 0
    targets: abc.Sequence[float] = ()


NO_DECODES = Decodes()


@dataclass(frozen=True, slots=True)
class StepTimeModel:
    """Predicts the seconds of steps.

    ``wide``: of steps of ``token_budget`` tokens. ``narrow``: of steps of up to ``narrow_width`` decodes alone; None:
    the same program runs both.
    """

    token_budget: int
    wide: LinearCost
    narrow: LinearCost | None = None
    narrow_width: float = inf

    @property
    def most_seconds(self) -> float:
        """Seconds of a full step of sequences without context."""
        return self.wide.seconds(self.token_budget)

    def decode_seconds(self, rows: int, contexts: int = 0) -> float:
        """Seconds of a step of ``rows`` decodes and nothing else; ``contexts`` as in StepSample."""
        return self.seconds(rows, 0, contexts, narrow=rows <= self.narrow_width)

    def decode_cost(self, rows: int) -> LinearCost:
        """Return the cost of steps of ``rows`` decodes and nothing else."""
        return self.narrow if self.narrow is not None and rows <= self.narrow_width else self.wide

    def step_seconds(self, plan: StepPlan) -> float:
        """Seconds of the step of a plan."""
        narrow = plan.decodes_only and plan.num_tokens <= self.narrow_width
        return self.seconds(plan.num_tokens, plan.num_positions, plan.num_contexts, narrow=narrow)

    def seconds(self, tokens: int, positions: int, contexts: int, *, narrow: bool) -> float:
        """Seconds of a step of ``tokens`` tokens; arguments as in StepSample. ``narrow``: of the narrow program."""
        cost = self.narrow if self.narrow is not None and narrow else self.wide
        return cost.seconds(tokens, positions, contexts)

    def prompt_tokens(self, decodes: Decodes) -> int:
        """Most prompt tokens of a step with ``decodes`` that meets the shortest target with room for LEAST_CHUNK."""
        most = max(1, self.token_budget - decodes.count)
        for target in decodes.targets:
            within = self.wide.tokens_within(MARGIN * target, decodes.contexts) - decodes.count
            if within >= LEAST_CHUNK:
                return int(min(most, within))
        return most

    def prompt_seconds(self, tokens: int, positions: int = 0, decodes: Decodes = NO_DECODES) -> float:
        """Seconds of the steps that compute ``tokens`` of prompts, each step with ``decodes``."""
        each = self.prompt_tokens(decodes)
        whole, rest = divmod(tokens, each)
        last = self.wide.seconds(rest + decodes.count, contexts=decodes.contexts) if rest else 0.0
        steps = whole * self.wide.seconds(each + decodes.count, contexts=decodes.contexts) + last
        return steps + self.wide.per_position * positions


@dataclass(slots=True)
class StepBudget:
    """The rest of a step that is being planned: tokens, and seconds."""

    tokens: int
    longest: int
    """Most tokens of one sequence."""
    cost: LinearCost = NO_COST
    seconds: float = inf
    spare: float = 0.0
    """Seconds by which a chunk may exceed ``seconds`` if it ends a prompt: the rest would need a step of its own."""

    @property
    def is_full(self) -> bool:
        return self.tokens <= 0 or (self.seconds < inf and self.seconds < max(self.cost.per_token, 1e-12))

    def tokens_for(self, sequence: Sequence) -> int:
        """Most tokens that a sequence may compute in a step that is not full.

        At least one, even if the step is then late, so that no sequence is admitted for nothing.
        """
        most = min(self.tokens, self.longest)
        if self.seconds == inf:
            return most
        each = max(self.cost.per_token + self.cost.per_position * sequence.num_computed, 1e-12)
        within = max(1, int(self.seconds / each))
        if (sequence.num_uncomputed - within) * each <= self.spare:
            within = sequence.num_uncomputed
        return min(most, within)

    def spend(self, chunk: Chunk) -> None:
        self.tokens -= chunk.length
        if self.seconds < inf:
            each = self.cost.per_context if chunk.length == 1 else self.cost.per_position
            self.seconds -= chunk.length * (self.cost.per_token + each * chunk.start)


class StepTimes(Protocol):
    """Knows what steps take now."""

    @property
    def model(self) -> StepTimeModel: ...

    @property
    def spread(self) -> float:
        """99th percentile of the measured over the predicted time of wide steps."""
        ...


@dataclass(frozen=True, slots=True)
class FixedStepTimes:
    """StepTimes that no measurement changes."""

    model: StepTimeModel
    spread: float = 1.0


class StepTimeEstimator:
    """Fit a model to the steps that are measured, and learn by how much single steps miss it.

    ``wide``, ``narrow``: steps of each program measured before; no narrow ones: there is no such program.
    ``narrow_width``: most tokens of its steps. ``floored``: as of CostEstimator.
    """

    def __init__(
        self,
        token_budget: int,
        wide: Iterable[StepSample],
        narrow: Iterable[StepSample] = (),
        narrow_width: float = inf,
        *,
        floored: bool = False,
    ) -> None:
        wide, narrow = tuple(wide), tuple(narrow)
        self._wide = CostEstimator(wide, floored=floored)
        self._narrow = CostEstimator(narrow) if narrow else None
        narrow_cost = None if self._narrow is None else self._narrow.cost
        self.model = StepTimeModel(token_budget, self._wide.cost, narrow_cost, narrow_width)
        self.spread = FIRST_SPREAD
        """99th percentile of the measured over the predicted time of wide steps.

        Narrow steps are excluded: they are not the longest, and fixed delays dominate them.
        """

    def observe(self, sample: StepSample, *, narrow: bool) -> None:
        meter = self._narrow if narrow and self._narrow is not None else self._wide
        if not narrow:
            ratio = sample.seconds / max(meter.cost.seconds(sample.tokens, sample.positions, sample.contexts), 1e-9)
            # Robbins and Monro's way to a quantile (1951): as many steps up as down once 1 % are above it.
            self.spread += SPREAD_STEP * (0.99 if ratio > self.spread else -0.01)
        if meter.observe(sample):
            narrow_cost = None if self._narrow is None else self._narrow.cost
            self.model = replace(self.model, wide=self._wide.cost, narrow=narrow_cost)
