"""Decoding with the context's KV in host memory: how much of each layer to project while the rest crosses the link.

Each decode step brings the KV of s' tokens over the link, layer by layer. KVPR (arXiv 2411.17089) brings X, the layer's
inputs, of the first l of them instead, and projects these to K and V while the KV of the other s' - l is on its way. A
token's seconds are tau for KV and chi for X on the link, pi for the projection on the device: of a layer, for all
sequences of the batch. A split pays only where chi < tau. The smallest time is next to where a rising and a falling
line meet; l is a multiple of a chunk and at most ``limit`` (the prompt, in the paper).

Row by row, weights resident, for latency:

    in turn, the paper's:  T(l) = l * chi + max(l * pi, (s' - l) * tau),    l* = s' * tau / (tau + pi);
    pipelined:             X in copies of c tokens, each projected while the next is under way: the planner's T(0, l),
                           T(l) = max(l * chi + (s' - l) * tau,  c * chi + l * pi,  l * chi + c * pi).

The three terms are the link's work, and the flow shop of l / c equal jobs on two machines, whose makespan is a job's
length and (l / c - 1) times its longer part. For c <= l each is at most the paper's time, so pipelining is never
slower; with c = l it is the paper's.

Column by column, for throughput: the weights of the next layer, W seconds, cross the link too, m batches pass through a
layer before the next one, and the device has d seconds of other work for each. Where the link may run ahead, both
resources are busy throughout and the busier sets the pace; projection hides behind the loading of weights and KV:

    T(l) = max(W + m * (l * chi + (s' - l) * tau),  m * (l * pi + d)),   l* = (W / m + s' * tau - d) / (pi + tau - chi).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isinf

from jaxgen.offload.planner import TokenSeconds, neighbours


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Tokens of a layer whose X (``project``, from the front) and whose KV (``transfer``) cross the link in a step.

    ``seconds``: what the layer should take, ``transfer_seconds``: what it would with nothing projected.
    """

    project: int
    transfer: int
    seconds: float
    transfer_seconds: float


@dataclass(frozen=True, slots=True)
class Column:
    """What passes a layer in column order: ``batches`` batches of ``device_seconds`` each beside the projection, and
    ``weight_seconds`` on the link for the next layer's weights. ValueError for values out of range."""

    batches: int
    weight_seconds: float
    device_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.batches < 1 or not (self.weight_seconds >= 0 and self.device_seconds >= 0):
            raise ValueError(f"a column has a batch at least, and no seconds below 0, not {self}")


def plan_in_turn(tokens: int, *, unit: TokenSeconds, chunk: int, limit: int) -> StreamPlan:
    """The paper's row by row: all of X first, then projection and KV at once. Raises ValueError as plan_pipelined."""
    _require(tokens, unit, chunk, limit)

    def seconds(project: int) -> float:
        return unit.makespan(project, tokens - project, chunk=project)

    if not unit.projection_pays:
        return _best(tokens, seconds, (0,))
    return _best(tokens, seconds, neighbours(tokens * unit.kv / (unit.kv + unit.project), chunk, limit))


def plan_pipelined(tokens: int, *, unit: TokenSeconds, chunk: int, limit: int) -> StreamPlan:
    """Row by row, with X in copies of ``chunk`` tokens that are projected while the next is under way.

    ``unit``: seconds of a layer for the whole batch. Raises ValueError for an unknown link, a chunk below 1, or a limit
    that is not within 0 and ``tokens``.
    """
    _require(tokens, unit, chunk, limit)

    def seconds(project: int) -> float:
        return unit.makespan(project, tokens - project, chunk=chunk)

    return _best(tokens, seconds, (unit.split(tokens, chunk=chunk, limit=limit),))


def plan_column(tokens: int, *, unit: TokenSeconds, chunk: int, limit: int, column: Column) -> StreamPlan:
    """Column by column, seconds of all batches; ``unit`` is of one. Raises ValueError as plan_pipelined."""
    _require(tokens, unit, chunk, limit)
    weights = column.weight_seconds / column.batches

    def seconds(project: int) -> float:
        link = weights + project * unit.x + (tokens - project) * unit.kv
        device = column.device_seconds + (project * unit.project if project else 0.0)
        return column.batches * max(link, device)

    if not unit.projection_pays:
        return _best(tokens, seconds, (0,))
    slack = weights + tokens * unit.kv - column.device_seconds
    return _best(tokens, seconds, neighbours(slack / (unit.project + unit.kv - unit.x), chunk, limit))


def _best(tokens: int, seconds: Callable[[int], float], choices: Iterable[int]) -> StreamPlan:
    project = min(choices, key=seconds)
    return StreamPlan(project, tokens - project, seconds(project), seconds(0))


def _require(tokens: int, unit: TokenSeconds, chunk: int, limit: int) -> None:
    if isinf(unit.kv):
        raise ValueError("nothing can be planned for a link whose rate is unknown")
    if chunk < 1 or not 0 <= limit <= tokens:
        raise ValueError(f"chunk {chunk} must be 1 or more, limit {limit} within 0 and {tokens}")
