"""Layers in stacks: each parameter has a leading layer axis, over which one layer's program is iterated."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Int

from jaxgen.arrays import ArrayLike
from jaxgen.models.layer_pattern import LayerAt, Part, Repeat, length, shortest
from jaxgen.models.mixed_weight import KernelWeight
from jaxgen.models.positions import Window, window_of_layer
from jaxgen.models.separate_weights import SeparateWeights
from jaxgen.models.stacked_weight import StackedWeight

_PICKED = KernelWeight | StackedWeight
"""Types of stacks that return a layer's weight themselves, whose number is data."""


class LayerHere(NamedTuple):
    """A layer as a program visits it. What differs between the layers of a body is data of the program."""

    number: Int[ArrayLike, ""]
    """Its number in the model."""
    kind: int
    """Its kind of cache, or NO_KIND."""
    place: Int[ArrayLike, ""]
    """Its place in the array of its kind."""
    window: Window
    stack: int
    """The stack that has its parameters."""


Visit = Callable[[Any, LayerHere, Any], Any]
Number = Int[ArrayLike, ""] | int


def fold_layers(
    stacks: Sequence[nnx.Module], layers: Sequence[LayerAt], visit: Visit, carry: Any, *, unrolled: bool = False
) -> Any:
    """Apply ``visit`` to each of the ``layers`` of these stacks, where it is, and ``carry``, in order; return the last
    carry.

    Layers of one stack and one kind of cache share a body of scans. Or, ``unrolled``, they are a loop of the program's
    text, as layers need whose matrices are separate arrays. The window is a number of the program where the layers of a
    body have the same.
    """
    graphs, stacked = zip(*map(nnx.split, stacks), strict=True)

    def run(params: Any, carry: Any, number: Int[Array, ""], body: tuple[int, ...]) -> Any:
        at = layers[body[0]]
        place = in_body([one.place for one in layers], body, number)
        window = window_of_layer([one.window for one in layers], number, body)
        here = LayerHere(number, at.kind, jnp.int32(place) if isinstance(place, int) else place, window, at.stack)
        return visit(nnx.merge(graphs[at.stack], params), here, carry)

    return (_unrolled if unrolled else _scanned)(stacked, layers, run, carry)


Run = Callable[[Any, Any, Int[Array, ""], tuple[int, ...]], Any]
"""Visits a layer, with its parameters, a carry, its number, and those of the layers with the same body."""


def _unrolled(stacked: Sequence[Any], layers: Sequence[LayerAt], run: Run, carry: Any) -> Any:
    types = [(at.stack, at.kind, at.window) for at in layers]
    bodies, once = _bodies(types), jax.jit(run, static_argnums=3)  # so that one trace serves all layers of a type
    for number, at in enumerate(layers):
        carry = once(slice_layer(stacked[at.stack], at.index), carry, jnp.int32(number), bodies[types[number]])
    return carry


def _scanned(stacked: Sequence[Any], layers: Sequence[LayerAt], run: Run, carry: Any) -> Any:
    types = tuple((at.stack, at.kind) for at in layers)
    bodies = _bodies(types)

    def visit_part(part: Part, number: Number, carry: Any) -> Any:
        """Visit the layers of a part, the first of which is ``number``."""
        if isinstance(part, Repeat):
            width = sum(map(length, part.parts))

            def turn(carry: Any, index: Int[Array, ""]) -> tuple[Any, None]:
                return visit_parts(part.parts, _sum(number, index if width == 1 else index * width), carry), None

            return lax.scan(turn, carry, jnp.arange(part.times))[0]
        body, number = bodies[part], jnp.int32(number) if isinstance(number, int) else number
        index = in_body([at.index for at in layers], body, number)
        params = slice_layer(stacked[layers[body[0]].stack], jnp.int32(index) if isinstance(index, int) else index)
        if len(bodies) == 1:
            return run(params, carry, number, body)
        # XLA would fuse operations of two bodies, and give other bits than where a scan divides them.
        return lax.optimization_barrier(run(params, lax.optimization_barrier(carry), number, body))

    def visit_parts(parts: Iterable[Part], number: Number, carry: Any) -> Any:
        before = 0
        for part in parts:
            carry = visit_part(part, _sum(number, before), carry)
            before += length(part)
        return carry

    return visit_parts(shortest(types), 0, carry)


def _bodies(types: Sequence[Hashable]) -> dict[Hashable, tuple[int, ...]]:
    """Return the numbers of the layers of each type."""
    return {one: tuple(number for number, other in enumerate(types) if other == one) for one in types}


def _sum(a: Number, b: Number) -> Number:
    """Return the sum, without an operation of the program where one is the number 0."""
    return b if isinstance(a, int) and a == 0 else a if isinstance(b, int) and b == 0 else a + b


def in_body(values: Sequence[int], body: tuple[int, ...], number: Int[Array, ""]) -> Number:
    """Return the value of layer ``number``, which is one of a body's. ``values``: of all layers."""
    if list(values) == list(range(len(values))):
        return number
    of_body = {values[one] for one in body}
    return of_body.pop() if len(of_body) == 1 else jnp.asarray(values, jnp.int32)[number]


def slice_layer(stacked: Any, index: Any) -> Any:
    """Return the parameters of layer ``index``, in the structure of ``stacked``, which has those of all layers."""

    def of_layer(value: Any) -> Any:
        if isinstance(value, SeparateWeights):
            return value.at(index)
        return value.at(jnp.asarray(index, jnp.int32)) if isinstance(value, _PICKED) else value[index]

    return jax.tree.map(of_layer, stacked, is_leaf=lambda value: isinstance(value, _PICKED | SeparateWeights))
