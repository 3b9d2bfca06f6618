"""Rates of steps that stream their context, measured without overlap, for the planner. Host only, no jax."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from statistics import linear_regression, median
from typing import Self

from jaxgen.layerwise.planning.split_plan import Stack, StreamPlan, plan_stack
from jaxgen.offload.planning.restore_plan import ContextCost, TokenSeconds

Split = Callable[[int], int]
"""Function (tokens of a layer's context in host memory) -> how many of its first tokens to project from inputs."""


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """The seconds of a step without overlap by kind of work, in all layers.

    ``tokens``: streamed tokens of all sequences, of which ``projected`` were copied as inputs. ``link``: seconds in
    which the link was busy with ``link_bytes`` in ``copies`` copies. ``device``: seconds of computation in the layers.
    ``other``: seconds before the first layer and after the last.
    """

    tokens: int
    projected: int
    copies: int
    link_bytes: int
    link: float
    device: float
    other: float


@dataclass(frozen=True, slots=True)
class StreamRates:
    """Rates of streamed steps. ``device_seconds``: time of a layer that projects no tokens, without streamed tokens.
    ``device_seconds_per_token``: additional time for each streamed token.

    ``project_seconds``: additional time to project a token instead of putting its K and V in place. ``other_seconds``:
    time of a step outside its layers.
    """

    num_layers: int
    bytes_per_second: float
    copy_seconds: float
    """Fixed seconds of each copy, whatever its size."""
    device_seconds: float
    device_seconds_per_token: float
    project_seconds: float
    other_seconds: float

    @classmethod
    def fit(cls, steps: Iterable[StepSeconds], num_layers: int, *, others: Iterable[StepSeconds] = ()) -> Self:
        """Fit the rates, with medians and straight lines, to steps of one batch that copied blocks.

        ``others``: steps of another batch that used the same link. If no step projected, ``project_seconds`` is inf.
        ValueError if all steps projected.
        """
        copying = [step for step in steps if step.copies]
        plain = [step for step in copying if not step.projected]
        projecting = [step for step in copying if step.projected]
        if not plain:
            raise ValueError("to tell what a step takes, some must copy K and V and project nothing")
        slope, intercept = _line((s.tokens, s.device / num_layers) for s in plain)
        extra = [(s.device / num_layers - intercept - slope * s.tokens) / s.projected for s in projecting]
        copies = [(s.link_bytes / s.copies, s.link / s.copies) for s in (*copying, *others) if s.copies]
        byte_seconds, copy_seconds = _line(copies)
        if not byte_seconds or not copy_seconds:
            byte_seconds, copy_seconds = median(seconds / size for size, seconds in copies), 0.0
        return cls(
            num_layers,
            1 / byte_seconds,
            copy_seconds,
            intercept,
            slope,
            max(0.0, median(extra)) if extra else inf,
            median(step.other for step in (*plain, *projecting)),
        )

    def unit(self, cost: ContextCost, chunk: int) -> TokenSeconds:
        """Return the seconds per token. ``cost``: of a token in one layer. ``chunk``: tokens in a copy."""
        link, copy = 1 / self.bytes_per_second, self.copy_seconds / chunk
        return TokenSeconds(cost.kv_bytes * link + copy, cost.x_bytes * link + copy, self.project_seconds)

    def stack(self, tokens: int) -> Stack:
        """Return the layers of a step that streams this number of tokens."""
        device = self.device_seconds + self.device_seconds_per_token * tokens
        return Stack(self.num_layers, device, self.other_seconds)

    def plan(self, tokens: int, cost: ContextCost, chunk: int) -> StreamPlan:
        """Plan the context of a step, of all sequences together, in copies of ``chunk`` tokens.

        All tokens are copied as KV if that is hardly slower.
        """
        unit, stack = self.unit(cost, chunk), self.stack(tokens)
        return plan_stack(tokens, unit=unit, chunk=chunk, limit=tokens, stack=stack).if_it_pays()


def _line(points: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Return slope and intercept of the line through the medians at each x, neither below 0."""
    values: defaultdict[float, list[float]] = defaultdict(list)
    for x, y in points:
        values[x].append(y)
    at = {x: median(ys) for x, ys in values.items()}
    slope = max(0.0, linear_regression(list(at), list(at.values())).slope) if len(at) > 1 else 0.0
    return slope, max(0.0, median(y - slope * x for x, y in at.items()))


def transfer_all(tokens: int) -> int:
    """Return 0: the Split that projects no tokens."""
    del tokens
    return 0
