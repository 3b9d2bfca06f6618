"""Decoding with the context's KV in host memory: how much of each layer to project while the rest crosses the link.

Each decode step copies the KV of s' tokens over the link, layer by layer. For the first l of them, KVPR (arXiv
2411.17089) copies X, the layer's inputs, instead, and projects X to K and V while the KV of the other s' - l tokens is
copied. A token takes tau seconds for KV and chi for X on the link, and pi for the projection on the device. These are
seconds of one layer, for all sequences of the batch. A split pays only if chi < tau. The smallest time is next to where
a rising and a falling line meet; l is a multiple of a chunk and at most ``limit`` (the prompt, in the paper).

One layer alone: X comes in copies of c tokens, and each copy is projected while the next one crosses the link. The time
is restore_plan's T(0, l),

    t(l) = max(l * chi + (s' - l) * tau,  c * chi + l * pi,  l * chi + c * pi).

The first term is the link's work. The others are the flow shop of l / c equal jobs on two machines, whose makespan is
the length of one job plus (l / c - 1) times its longer part. With c = l it is the paper's time; a smaller c is never
slower.

A stack of L layers, with two buffers: while a layer computes, for d seconds, the link copies the next layer's context.
D(i), the end of layer i, is

    D(i) = d + max(D(i - 1) + l * pi,  (i - 1) * (l * chi + (s' - l) * tau) + t(l)),   D(0) = 0,

because its projections wait for the layer before it, and for its copies, which follow those of i - 1 layers. So

    D(L) = t(l) + d + (L - 1) * max(l * chi + (s' - l) * tau,  l * pi + d):

the device waits for the first layer's context, and each other layer takes the time of the busier resource. D(L) is
convex from l = c on, with corners at those of t(l) and where the two terms of the last maximum are equal.
"""

from dataclasses import dataclass
from math import ceil, floor, isinf

from jaxgen.offload.planning.restore_plan import MIN_GAIN, TokenSeconds


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Tokens of a layer whose X (``project``, the first ones) and whose KV (``transfer``) cross the link in a step.

    ``seconds``: predicted time of the step; ``transfer_seconds``: the same if no tokens are projected.
    """

    project: int
    transfer: int
    seconds: float
    transfer_seconds: float

    def if_it_pays(self) -> "StreamPlan":
        """Return this plan, or one without projection if it saves less than ``MIN_GAIN``, since rates are inexact."""
        if self.seconds <= (1 - MIN_GAIN) * self.transfer_seconds:
            return self
        return StreamPlan(0, self.project + self.transfer, self.transfer_seconds, self.transfer_seconds)


@dataclass(frozen=True, slots=True)
class Stack:
    """The layers of a step: ``device_seconds`` for each layer without the projection, and ``other_seconds`` of the step
    before the first layer and after the last. ValueError for values out of range."""

    layers: int
    device_seconds: float
    other_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.layers < 1 or not (self.device_seconds >= 0 and self.other_seconds >= 0):
            raise ValueError(f"a stack has a layer at least, and no seconds below 0, not {self}")

    def seconds(self, project: int, transfer: int, *, unit: TokenSeconds, chunk: int) -> float:
        """Return the seconds of a step in which each layer projects and transfers these tokens, with two buffers."""
        link = project * unit.x + transfer * unit.kv
        device = (project * unit.project if project else 0.0) + self.device_seconds
        first = unit.makespan(project, transfer, chunk=chunk) + self.device_seconds
        return self.other_seconds + first + (self.layers - 1) * max(link, device)


def plan_stack(tokens: int, *, unit: TokenSeconds, chunk: int, limit: int, stack: Stack) -> StreamPlan:
    """Return the fastest plan of a step, with X in copies of ``chunk`` tokens.

    ``unit``: seconds of a layer for the whole batch. Raises ValueError for an unknown link, a chunk below 1, or a limit
    that is not within 0 and ``tokens``.
    """
    if isinf(unit.kv):
        raise ValueError("nothing can be planned for a link whose rate is unknown")
    if chunk < 1 or not 0 <= limit <= tokens:
        raise ValueError(f"chunk {chunk} must be 1 or more, limit {limit} within 0 and {tokens}")

    def seconds(project: int) -> float:
        return stack.seconds(project, tokens - project, unit=unit, chunk=chunk)

    transfer, slope = tokens * unit.kv, unit.project + unit.kv - unit.x
    corners = [0.0]
    if unit.projection_pays:
        corners += [
            float(chunk),
            (transfer - chunk * unit.x) / slope,
            (transfer - chunk * unit.project) / unit.kv,
            (transfer - stack.device_seconds) / slope,
            float(limit),
        ]
    choices = sorted({part for corner in corners for part in _neighbours(corner, chunk, limit)})
    project = min(choices, key=seconds)
    return StreamPlan(project, tokens - project, seconds(project), seconds(0))


def _neighbours(value: float, step: int, limit: int) -> tuple[int, int]:
    """Return the multiples of ``step`` next to ``value``, the lower and the upper one, within 0 and ``limit``."""
    steps = max(0.0, min(value / step, limit // step))
    return floor(steps) * step, ceil(steps) * step
