"""Layers as a stack: each parameter has a leading layer axis, over which one layer's program is iterated."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, cast, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from jaxgen.models.attention import Attention
from jaxgen.models.batch import StepBatch
from jaxgen.models.kv_cache import KVCache
from jaxgen.models.mixed_weight import KernelWeight
from jaxgen.models.norms import Norm
from jaxgen.models.positions import Positional, Window, window_of_layer
from jaxgen.models.separate_weights import SeparateWeights
from jaxgen.models.stacked_weight import StackedWeight

_PICKED = KernelWeight | SeparateWeights | StackedWeight
"""Types of stacks that return a layer's weight themselves."""


@runtime_checkable
class Layer(Protocol):
    """A decoder layer of a model: all layers if its parameters are stacked, one layer once they are sliced."""

    attn: Attention

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of each layer; empty if none has one."""

    def positional(self, positions: Int[Array, "T"]) -> Positional:
        """Return what the layers make of the tokens' positions."""

    @property
    def input_norm(self) -> Norm | None:
        """The norm of the layer's input before the projections, if there is one."""

    def __call__(
        self,
        x: Float[Array, "T D"],
        cache: KVCache,
        index: Int[Array, ""],
        batch: StepBatch,
        positional: Positional,
        window: Window,
    ) -> tuple[Float[Array, "T D"], KVCache]:
        """Return the layer's output, and the cache with its K and V in layer ``index`` of it."""


Visit = Callable[[Layer, Int[Array, ""], Window, Any], Any]


def scan_layers(
    layers: nnx.Module, num_layers: int, x: Float[Array, "T D"], cache: KVCache, batch: StepBatch
) -> tuple[Float[Array, "T D"], KVCache]:
    """Run the stacked ``layers``, of which each slice is a Layer, in order.

    The cache is part of the scan's carry, which XLA updates in place; as a scanned input and output all of it would be
    copied.
    """
    stack = cast(Layer, layers)
    positional = stack.positional(batch.positions)

    def run(layer: Layer, index: Int[Array, ""], window: Window, carry: tuple[Float[Array, "T D"], KVCache]) -> Any:
        x, cache = carry
        return layer(x, cache.keep(index, x, batch.slots), index, batch, positional.of_layer(index), window)

    return cast(tuple[jax.Array, KVCache], fold_layers(layers, num_layers, run, (x, cache), stack.windows))


def fold_layers(
    layers: nnx.Module, num_layers: int, visit: Visit, carry: Any, windows: Sequence[int | None] = ()
) -> Any:
    """Apply ``visit`` to each of the stacked ``layers``, its index, its window and ``carry``, in order; return the last
    carry. ``windows``: of the layers; empty: none has one.

    This is a scan, or an unrolled loop if the layers' matrices are separate arrays. Windows are numbers of the program
    in the latter.
    """
    graph, stacked = nnx.split(layers)

    def run(params: Any, carry: Any, index: Int[Array, ""], window: Window) -> Any:
        return visit(cast(Layer, nnx.merge(graph, params)), index, window, carry)

    values = jax.tree.leaves(stacked, is_leaf=lambda value: isinstance(value, SeparateWeights))
    if any(isinstance(value, SeparateWeights) for value in values):
        # so that one trace serves all layers of a window
        once = {window: jax.jit(partial(run, window=window)) for window in set(windows) or {None}}
        for layer in range(num_layers):
            one = once[windows[layer] if windows else None]
            carry = one(slice_layer(stacked, layer), carry, jnp.int32(layer))
        return carry
    carry, _ = lax.scan(
        lambda carry, index: (run(slice_layer(stacked, index), carry, index, window_of_layer(windows, index)), None),
        carry,
        jnp.arange(num_layers),
    )
    return carry


def project(
    layer: Layer,
    x: Float[Array, "T E"],
    cache: KVCache,
    index: Int[Array, ""],
    slots: Int[Array, "T"],
    positional: Positional,
    num_tokens: Int[Array, ""],
) -> KVCache:
    """Return the cache with K and V, in its layer ``index``, of tokens whose inputs to ``layer`` are ``x``.

    K and V of token t are written to ``slots[t]``. They equal what the layer writes in a step (KVPR, arXiv 2411.17089).
    They are bit for bit equal if the rows of a product do not depend on their number, else up to rounding. Slots are
    whole blocks, as for ``KVCache.write``; slots of tokens from ``num_tokens`` on must be past the last slot.
    """
    attn, kernels = layer.attn, cache.kernels

    def norm(x: Float[Array, "T E"]) -> Float[Array, "T E"]:
        return x if layer.input_norm is None else layer.input_norm(x, num_tokens, kernels)

    weight = attn.qkv.weight.get_value()
    if kernels.partial_recompute is None or isinstance(weight, KernelWeight):
        _, k, v = attn.projected(norm(x), num_tokens, positional, kernels)
        return cache.write(index, k, v, slots)
    bias = attn.qkv.bias
    biases = None if bias is None else bias[...][None]
    k_norm = None if attn.k_norm is None else partial(attn.normed_keys, num_tokens=num_tokens, kernels=kernels)
    options: dict[str, Any] = {"norm": norm, "k_norm": k_norm, "run": cache.block_size}
    data = kernels.partial_recompute(cache.data, index, x, weight[None], biases, positional.angles, slots, **options)
    return replace(cache, data=data)


def slice_layer(stacked: Any, index: Any) -> Any:
    """Return the parameters of layer ``index``, in the structure of ``stacked``, which has those of all layers."""

    def of_layer(value: Any) -> Any:
        return value.at(index) if isinstance(value, _PICKED) else value[index]

    return jax.tree.map(of_layer, stacked, is_leaf=lambda value: isinstance(value, _PICKED))
