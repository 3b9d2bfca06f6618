"""Layers as a stack: each parameter has a leading layer axis, over which one layer's program is iterated."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Int

from jaxgen.models.mixed_weight import KernelWeight
from jaxgen.models.positions import Window, window_of_layer
from jaxgen.models.separate_weights import SeparateWeights
from jaxgen.models.stacked_weight import StackedWeight

_PICKED = KernelWeight | SeparateWeights | StackedWeight
"""Types of stacks that return a layer's weight themselves."""


Visit = Callable[[Any, Int[Array, ""], Window, Any], Any]


def fold_layers(
    layers: nnx.Module,
    num_layers: int,
    visit: Visit,
    carry: Any,
    windows: Sequence[int | None] = (),
    *,
    unrolled: bool = False,
) -> Any:
    """Apply ``visit`` to each of the stacked ``layers``, its index, its window and ``carry``, in order; return the last
    carry. ``windows``: of the layers; empty: none has one.

    This is a scan or, ``unrolled``, a loop of the program's text, as layers need whose matrices are separate arrays.
    Windows are numbers of the program in the latter.
    """
    graph, stacked = nnx.split(layers)

    def run(params: Any, carry: Any, index: Int[Array, ""], window: Window) -> Any:
        return visit(nnx.merge(graph, params), index, window, carry)

    if unrolled:
        # so that one trace serves all layers of a window
        once = {window: jax.jit(partial(run, window=window)) for window in set(windows) or {None}}
        for layer in range(num_layers):
            run_layer = once[windows[layer] if windows else None]
            carry = run_layer(slice_layer(stacked, layer), carry, jnp.int32(layer))
        return carry
    carry, _ = lax.scan(
        lambda carry, index: (run(slice_layer(stacked, index), carry, index, window_of_layer(windows, index)), None),
        carry,
        jnp.arange(num_layers),
    )
    return carry


def slice_layer(stacked: Any, index: Any) -> Any:
    """Return the parameters of layer ``index``, in the structure of ``stacked``, which has those of all layers."""

    def of_layer(value: Any) -> Any:
        if isinstance(value, KernelWeight | StackedWeight):
            return value.at(jnp.asarray(index, jnp.int32))
        return value.at(index) if isinstance(value, SeparateWeights) else value[index]

    return jax.tree.map(of_layer, stacked, is_leaf=lambda value: isinstance(value, _PICKED))
