"""How fast steps go, and what that leaves for prompts in a step that is planned. Host only, no jax, no clock."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from jaxgen.sequence import Chunk, Sequence
from jaxgen.step_cost import CostMeter, StepCost, StepSample

MARGIN = 0.9
"""Share of an inter-token target that a step is planned to take: steps vary, and a mean is what is predicted."""
LEAST_CHUNK = 16
"""Where a target leaves room for fewer tokens of prompts than these, a step takes all it can: as many tokens would come
late of prompts in such small pieces, over more steps."""

SPREAD_STEP = 0.05
"""Of a meter's spread, for a step that is slower than it says."""

NO_COST = StepCost(0.0)


@dataclass(frozen=True, slots=True)
class Pace:
    """What steps cost: ``wide`` those of ``token_budget`` tokens, ``narrow`` those of decodes only; None: the same."""

    token_budget: int
    wide: StepCost
    narrow: StepCost | None = None

    @property
    def most_seconds(self) -> float:
        """A full step of sequences that have only begun."""
        return self.wide.seconds(self.token_budget)

    def decode_seconds(self, rows: int, positions: int = 0) -> float:
        """A step of so many decodes and nothing else; ``positions`` as in StepSample."""
        return (self.narrow or self.wide).seconds(rows, positions)

    def prompt_seconds(self, tokens: int, positions: int = 0, *, decodes: int = 0, target: float = inf) -> float:
        """The steps that compute so many tokens of prompts, each beside ``decodes`` sequences that decode, and cut so
        that it keeps a ``target`` between their tokens, where it can."""
        each = max(1, self.token_budget - decodes)
        within = self.wide.tokens_within(MARGIN * target) - decodes
        if within >= LEAST_CHUNK:
            each = int(min(each, within))
        whole, rest = divmod(tokens, each)
        last = self.wide.seconds(rest + decodes) if rest else 0.0
        return whole * self.wide.seconds(each + decodes) + last + self.wide.per_position * positions


@dataclass(slots=True)
class StepRoom:
    """What is left of a step that is planned: of its tokens, and of the time that it may take."""

    tokens: int
    longest: int
    """Most tokens of one sequence."""
    cost: StepCost = NO_COST
    seconds: float = inf

    @property
    def is_full(self) -> bool:
        return self.tokens <= 0 or (self.seconds < inf and self.seconds < max(self.cost.per_token, 1e-12))

    def tokens_for(self, sequence: Sequence) -> int:
        """Most tokens that it may compute in a step that is not full: one at least, late as it may be, so that nobody
        is admitted for nothing."""
        most = min(self.tokens, self.longest)
        if self.seconds == inf:
            return most
        return min(most, max(1, int(self.seconds / max(self._seconds_each(sequence.num_computed), 1e-12))))

    def spend(self, chunk: Chunk) -> None:
        self.tokens -= chunk.length
        if self.seconds < inf:
            self.seconds -= chunk.length * self._seconds_each(chunk.start)

    def _seconds_each(self, start: int) -> float:
        return self.cost.per_token + self.cost.per_position * start


def shortest_target(sequences: Iterable[Sequence]) -> float:
    """Of the times between tokens that their classes promise; infinite where none does."""
    return min([t for s in sequences if (t := s.service.inter_token_seconds) is not None], default=inf)


def time_left(pace: Pace, chunks: list[Chunk]) -> float:
    """Seconds that a step with these chunks may still take, for the promises made to those of them that decode."""
    target = shortest_target([chunk.sequence for chunk in chunks if chunk.length == 1])
    if target == inf:
        return inf
    tokens = sum([chunk.length for chunk in chunks])
    return MARGIN * target - pace.wide.seconds(tokens, sum([chunk.length * chunk.start for chunk in chunks]))


def time_for_prompts(pace: Pace, decodes: list[Chunk], start: int) -> float:
    """Seconds for prompts beside these decodes; infinite also where that would be too few tokens of the first of them,
    from ``start`` on, so that a promise could be kept only without prompts."""
    left = time_left(pace, decodes)
    return left if left >= LEAST_CHUNK * (pace.wide.per_token + pace.wide.per_position * start) else inf


class PaceMeter:
    """Keeps a pace up with the steps that are measured, and knows by how much single steps miss it.

    ``wide``, ``narrow``: steps of each program measured before; no narrow ones: there is no such program.
    """

    def __init__(self, token_budget: int, wide: Iterable[StepSample], narrow: Iterable[StepSample] = ()) -> None:
        wide, narrow = tuple(wide), tuple(narrow)
        self._wide = CostMeter(wide)
        self._narrow = CostMeter(narrow) if narrow else None
        self.pace = Pace(token_budget, self._wide.cost, None if self._narrow is None else self._narrow.cost)
        self.spread = max(
            [sample.seconds / self._wide.cost.seconds(sample.tokens, sample.positions) for sample in wide]
        )
        """Of 100 steps one takes more than so many times what the pace says."""

    def observe(self, sample: StepSample, *, narrow: bool) -> None:
        meter = self._narrow if narrow and self._narrow is not None else self._wide
        ratio = sample.seconds / max(meter.cost.seconds(sample.tokens, sample.positions), 1e-9)
        # Robbins and Monro's way to a quantile (1951): as many steps up as down once 1 % are above it.
        self.spread += SPREAD_STEP * (0.99 if ratio > self.spread else -0.01)
        if meter.observe(sample):
            narrow_cost = None if self._narrow is None else self._narrow.cost
            self.pace = Pace(self.pace.token_budget, self._wide.cost, narrow_cost)
