"""Decoding with the context's KV in host memory: how much of each layer to project while the rest crosses the link.

Each decode step copies the KV of s' tokens over the link, layer by layer. For the first l of them, KVPR (arXiv
2411.17089) copies X, the layer's inputs, instead, and projects X to K and V while the KV of the other s' - l tokens is
copied. A token takes tau seconds for KV and chi for X on the link, and pi for the projection on the device; these are
seconds of one layer, for all sequences of the batch. A split pays only if chi < tau. The smallest time is next to where
a rising and a falling line meet; l is a multiple of a chunk and at most ``limit`` (the prompt, in the paper).

Row by row, with resident weights, for latency:

    in turn, the paper's:  T(l) = l * chi + max(l * pi, (s' - l) * tau),    l* = s' * tau / (tau + pi);
    pipelined:             X in copies of c tokens, each projected while the next is copied: restore_plan's T(0, l),
                           T(l) = max(l * chi + (s' - l) * tau,  c * chi + l * pi,  l * chi + c * pi).

The first term is the link's work. The others are the flow shop of l / c equal jobs on two machines, whose makespan is
the length of one job plus (l / c - 1) times its longer part. For c <= l each term is at most the paper's time, so
pipelining is never slower; with c = l it is the paper's.

Column by column, for throughput: the weights of the next layer, W seconds, cross the link too, m batches pass through a
layer before the next one, and the device has d seconds of other work for each batch. If the link may run ahead, both
resources are always busy and the busier one sets the pace; projection overlaps the loading of weights and KV:

    T(l) = max(W + m * (l * chi + (s' - l) * tau),  m * (l * pi + d)),   l* = (W / m + s' * tau - d) / (pi + tau - chi).

Row by row with two buffers, for the step of a stack of L layers: while a layer computes, for d seconds, the link copies
the next layer's context, in copies of c tokens. With t(l) the pipelined time above, D(i), the end of layer i, is

    D(i) = d + max(D(i - 1) + l * pi,  (i - 1) * (l * chi + (s' - l) * tau) + t(l)),   D(0) = 0,

because its projections wait for the layer before it, and for its copies, which follow those of i - 1 layers. So

    D(L) = t(l) + d + (L - 1) * max(l * chi + (s' - l) * tau,  l * pi + d):

the device waits for the first layer's context, and each other layer takes the time of the busier resource. D(L) is
convex from l = c on, with corners at those of t(l) and at the l* of one column.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isinf

from jaxgen.offload.restore_plan import MIN_GAIN, TokenSeconds, neighbours


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Tokens of a layer whose X (``project``, the first ones) and whose KV (``transfer``) cross the link in a step.

    ``seconds``: predicted time; ``transfer_seconds``: predicted time if no tokens are projected. They are times of a
    layer, of all batches of a column, or of a whole step; see the function that made the plan.
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
class Column:
    """Work of a layer in column order: ``batches`` batches of ``device_seconds`` each beside the projection, and
    ``weight_seconds`` on the link for the next layer's weights. ValueError for values out of range."""

    batches: int
    weight_seconds: float
    device_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.batches < 1 or not (self.weight_seconds >= 0 and self.device_seconds >= 0):
            raise ValueError(f"a column has a batch at least, and no seconds below 0, not {self}")

    def seconds(self, project: int, transfer: int, *, unit: TokenSeconds) -> float:
        """Return the seconds of a layer in which each batch projects and transfers these numbers of tokens.

        They are the seconds of the busier resource.
        """
        link = self.weight_seconds + self.batches * (project * unit.x + transfer * unit.kv)
        device = (project * unit.project if project else 0.0) + self.device_seconds
        return max(link, self.batches * device)


@dataclass(frozen=True, slots=True)
class Stack:
    """The layers of a step: ``device_seconds`` for each layer beside the projection, and ``other_seconds`` of the step
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

    def seconds_without_overlap(self, project: int, transfer: int, *, unit: TokenSeconds) -> float:
        """Return the seconds if each layer begins when all of its context is there, and the next copies after it."""
        link = project * unit.x + transfer * unit.kv
        device = (project * unit.project if project else 0.0) + self.device_seconds
        return self.other_seconds + self.layers * (link + device)


def plan_in_turn(tokens: int, *, unit: TokenSeconds, chunk: int, limit: int) -> StreamPlan:
    """Plan row by row as the paper does: all of X first, then projection and KV in parallel.

    Raises ValueError as plan_pipelined does.
    """
    _require(tokens, unit, chunk, limit)

    def seconds(project: int) -> float:
        return unit.makespan(project, tokens - project, chunk=project)

    if not unit.projection_pays:
        return _best(tokens, seconds, (0,))
    return _best(tokens, seconds, neighbours(tokens * unit.kv / (unit.kv + unit.project), chunk, limit))


def plan_pipelined(tokens: int, *, unit: TokenSeconds, chunk: int, limit: int) -> StreamPlan:
    """Plan row by row, with X in copies of ``chunk`` tokens, each projected while the next is copied.

    ``unit``: seconds of a layer for the whole batch. Raises ValueError for an unknown link, a chunk below 1, or a limit
    that is not within 0 and ``tokens``.
    """
    _require(tokens, unit, chunk, limit)

    def seconds(project: int) -> float:
        return unit.makespan(project, tokens - project, chunk=chunk)

    return _best(tokens, seconds, (unit.split(tokens, chunk=chunk, limit=limit),))


def plan_column(tokens: int, *, unit: TokenSeconds, chunk: int, limit: int, column: Column) -> StreamPlan:
    """Plan column by column, in seconds of all batches; ``unit``: seconds of one batch.

    Raises ValueError as plan_pipelined does.
    """
    _require(tokens, unit, chunk, limit)

    def seconds(project: int) -> float:
        return column.seconds(project, tokens - project, unit=unit)

    if not unit.projection_pays:
        return _best(tokens, seconds, (0,))
    slack = column.weight_seconds / column.batches + tokens * unit.kv - column.device_seconds
    return _best(tokens, seconds, neighbours(slack / (unit.project + unit.kv - unit.x), chunk, limit))


def plan_stack(tokens: int, *, unit: TokenSeconds, chunk: int, limit: int, stack: Stack) -> StreamPlan:
    """Plan row by row with two buffers, in seconds of the whole step. Raises ValueError as plan_pipelined does."""
    _require(tokens, unit, chunk, limit)

    def seconds(project: int) -> float:
        return stack.seconds(project, tokens - project, unit=unit, chunk=chunk)

    if not unit.projection_pays:
        return _best(tokens, seconds, (0,))
    transfer, slope = tokens * unit.kv, unit.project + unit.kv - unit.x
    corners = (
        0.0,
        float(chunk),
        (transfer - chunk * unit.x) / slope,
        (transfer - chunk * unit.project) / unit.kv,
        (transfer - stack.device_seconds) / slope,
        float(limit),
    )
    return _best(tokens, seconds, sorted({part for corner in corners for part in neighbours(corner, chunk, limit)}))


def _best(tokens: int, seconds: Callable[[int], float], choices: Iterable[int]) -> StreamPlan:
    project = min(choices, key=seconds)
    return StreamPlan(project, tokens - project, seconds(project), seconds(0))


def _require(tokens: int, unit: TokenSeconds, chunk: int, limit: int) -> None:
    if isinf(unit.kv):
        raise ValueError("nothing can be planned for a link whose rate is unknown")
    if chunk < 1 or not 0 <= limit <= tokens:
        raise ValueError(f"chunk {chunk} must be 1 or more, limit {limit} within 0 and {tokens}")
