"""Layers that the families share. Matrices are kept as Hugging Face stores them, [out, in]: XLA on CPU repacks less of
such a weight than of its transpose, and loading makes no copy.

Each parameter may have a leading layer axis (``stack``), over which ``scan_layers`` iterates.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, cast, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from jaxgen.arrays import ArrayLike
from jaxgen.core.config import ModelConfig, RopeConfig
from jaxgen.kernels.choice import Kernels
from jaxgen.models.attention import attend
from jaxgen.models.batch import StepBatch
from jaxgen.models.kv_cache import KVCache
from jaxgen.models.packed_weight import PackedWeight
from jaxgen.models.separate_weights import SeparateWeights

Shape = tuple[int, ...]
INIT_STD = 0.02
Angles = tuple[Float[Array, "T 1 half"], Float[Array, "T 1 half"]]
"""Cosine and sine of each token's rotary angles."""
_PICKED = (PackedWeight, SeparateWeights)
"""Types of stacks that return a layer's weight themselves."""


class Matrix(nnx.Param[jax.Array]):
    """A weight [*stack, out, in] of a matrix product, which may be packed for it."""


def product(
    x: Float[Array, "T I"], weight: Float[Array, "O I"] | PackedWeight, num_tokens: Int[ArrayLike, ""]
) -> Float[Array, "T O"]:
    """Return x @ weight.T, accumulated and returned in float32; float32 operands are not rounded to fewer bits.

    Rows from ``num_tokens`` on are padding: a packed product does not compute them.
    """
    if isinstance(weight, PackedWeight):
        return weight.product(x, num_tokens)
    return lax.dot_general(
        x,
        weight,
        (((1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


def _normal(rngs: nnx.Rngs, shape: Shape, dtype: str) -> jax.Array:
    return INIT_STD * jax.random.normal(rngs.params(), shape, jnp.dtype(dtype))


class Linear(nnx.Module):
    """y = x @ weight.T + bias, weight [*stack, out, in]."""

    def __init__(self, size_in: int, size_out: int, *, bias: bool, dtype: str, rngs: nnx.Rngs, stack: Shape = ()):
        self.weight = Matrix(_normal(rngs, (*stack, size_out, size_in), dtype))
        self.bias = nnx.Param(jnp.zeros((*stack, size_out), jnp.dtype(dtype))) if bias else None

    def __call__(
        self, x: Float[Array, "T I"], num_tokens: Int[ArrayLike, ""], residual: Float[Array, "T O"] | None = None
    ) -> Float[Array, "T O"]:
        """Return the result, rounded to the dtype of x and then added to ``residual``, if any."""
        weight = self.weight.get_value()
        if self.bias is None and isinstance(weight, PackedWeight):
            return weight.product(x, num_tokens, residual, dtype=x.dtype)
        y = self.in_float32(x, num_tokens).astype(x.dtype)
        return y if residual is None else residual + y

    def in_float32(self, x: Float[Array, "T I"], num_tokens: Int[ArrayLike, ""]) -> Float[Array, "T O"]:
        """Return the result in float32, as it was accumulated."""
        y = product(x, self.weight.get_value(), num_tokens)
        return y if self.bias is None else y + self.bias[...].astype(jnp.float32)


class Embedding(nnx.Module):
    """Rows of weight [vocabulary, width]; as a ``head``, its transpose gives logits."""

    def __init__(self, num_rows: int, width: int, *, head: bool, dtype: str, rngs: nnx.Rngs):
        self.weight = (Matrix if head else nnx.Param)(_normal(rngs, (num_rows, width), dtype))

    def __call__(self, ids: Int[Array, "T"]) -> Float[Array, "T W"]:
        weight = self.weight.get_value()
        return weight.rows(ids) if isinstance(weight, PackedWeight) else weight[ids]

    def logits(self, x: Float[Array, "T W"], num_tokens: Int[ArrayLike, ""]) -> Float[Array, "T V"]:
        return product(x, self.weight.get_value(), num_tokens)


class RMSNorm(nnx.Module):
    """x / rms(x) * weight."""

    def __init__(self, width: int, *, eps: float, dtype: str, stack: Shape = ()):
        self.weight = nnx.Param(jnp.ones((*stack, width), jnp.dtype(dtype)))
        self.eps = eps

    def __call__(self, x: Float[Array, "T D"], num_tokens: Int[ArrayLike, ""], kernels: Kernels) -> Float[Array, "T D"]:
        normed: Array = kernels.rms_norm(x, self.weight[...], num_tokens, eps=self.eps)
        return normed


class LayerNorm(nnx.Module):
    """(x - mean) / std * weight + bias; without weight and bias if not ``affine``."""

    def __init__(self, width: int, *, affine: bool, dtype: str, stack: Shape = (), eps: float = 1e-5):
        self.weight = nnx.Param(jnp.ones((*stack, width), jnp.dtype(dtype))) if affine else None
        self.bias = nnx.Param(jnp.zeros((*stack, width), jnp.dtype(dtype))) if affine else None
        self.eps = eps

    def __call__(self, x: Float[Array, "T D"], num_tokens: Int[ArrayLike, ""], kernels: Kernels) -> Float[Array, "T D"]:
        weight = None if self.weight is None else self.weight[...]
        bias = None if self.bias is None else self.bias[...]
        normed: Array = kernels.layer_norm(x, weight, bias, num_tokens, eps=self.eps)
        return normed


def inverse_frequencies(config: RopeConfig, head_dim: int) -> Float[Array, "half"]:
    """Return the angular frequency of each rotary pair, in radians per token, with the context extension applied.

    linear: position interpolation (Chen et al., arXiv 2306.15595). llama3: wavelengths longer than
    original_max_position / low_freq_factor are divided by ``factor``, shorter than original / high_freq_factor are
    kept, those between are blended.
    """
    frequencies = 1.0 / config.theta ** (jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    if config.kind == "linear":
        return frequencies / config.factor
    if config.kind == "llama3":
        turns = config.original_max_position * frequencies / (2 * jnp.pi)
        keep = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
        keep = jnp.clip(keep, 0.0, 1.0)
        return frequencies * keep + frequencies / config.factor * (1.0 - keep)
    return frequencies


def rotary_angles(config: RopeConfig, head_dim: int, positions: Int[Array, "T"]) -> Angles:
    """Return cosine and sine of each token's rotary angles, float32."""
    angles = positions[:, None, None].astype(jnp.float32) * inverse_frequencies(config, head_dim)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: Float[Array, "T H D"], angles: Angles | None) -> Float[Array, "T H D"]:
    """Apply rotary embedding (Su et al., arXiv 2104.09864) to x, in float32, with the halves of a head as pairs.

    ``angles`` None: return x.
    """
    if angles is None:
        return x
    cos, sin = angles
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


class Attention(nnx.Module):
    """Self-attention over the blocked cache, added to a ``residual``. Query, key and value projections are one product.

    Rotary ``angles``, if given, are applied to queries and keys.
    """

    def __init__(self, config: ModelConfig, *, bias: bool, rngs: nnx.Rngs, stack: Shape):
        self.config = config
        heads = config.num_heads + 2 * config.num_kv_heads
        self.qkv = Linear(
            config.hidden_size, heads * config.head_dim, bias=bias, dtype=config.dtype, rngs=rngs, stack=stack
        )
        self.out = Linear(
            config.num_heads * config.head_dim,
            config.hidden_size,
            bias=bias,
            dtype=config.dtype,
            rngs=rngs,
            stack=stack,
        )

    def __call__(
        self,
        x: Float[Array, "T D"],
        cache: KVCache,
        index: Int[Array, ""],
        batch: StepBatch,
        angles: Angles | None,
        residual: Float[Array, "T D"],
    ) -> tuple[Float[Array, "T D"], KVCache]:
        out, cache = attend(self.config, *self.projected(x, batch.num_tokens, angles), cache, index, batch)
        return self.out(out.reshape(x.shape[0], -1), batch.num_tokens, residual), cache

    def projected(
        self, x: Float[Array, "T D"], num_tokens: Int[ArrayLike, ""], angles: Angles | None
    ) -> tuple[Float[Array, "T H d"], Float[Array, "T K d"], Float[Array, "T K d"]]:
        """Return queries, keys and values of the first ``num_tokens`` tokens, for all heads."""
        heads, kv_heads = self.config.num_heads, self.config.num_kv_heads
        qkv = self.qkv(x, num_tokens).reshape(x.shape[0], -1, self.config.head_dim)
        q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
        return rotate(q, angles), rotate(k, angles), v


@runtime_checkable
class Layer(Protocol):
    """A decoder layer of a family: all layers if its parameters are stacked, one layer once they are sliced."""

    attn: Attention

    def angles(self, positions: Int[Array, "T"]) -> Angles | None: ...

    @property
    def input_norm(self) -> RMSNorm | LayerNorm | None: ...

    def __call__(
        self, x: Float[Array, "T D"], cache: KVCache, index: Int[Array, ""], batch: StepBatch, angles: Angles | None
    ) -> tuple[Float[Array, "T D"], KVCache]: ...


def scan_layers(
    layers: nnx.Module, num_layers: int, x: Float[Array, "T D"], cache: KVCache, batch: StepBatch
) -> tuple[Float[Array, "T D"], KVCache]:
    """Run the stacked ``layers``, of which each slice is a Layer, in order.

    The cache is part of the scan's carry, which XLA updates in place; as a scanned input and output all of it would be
    copied.
    """
    angles = cast(Layer, layers).angles(batch.positions)

    def run(layer: Layer, index: Int[Array, ""], carry: tuple[Float[Array, "T D"], KVCache]) -> Any:
        x, cache = carry
        return layer(x, cache.keep(index, x, batch.slots), index, batch, angles)

    return cast(tuple[jax.Array, KVCache], fold_layers(layers, num_layers, run, (x, cache)))


def fold_layers(
    layers: nnx.Module, num_layers: int, visit: Callable[[Layer, Int[Array, ""], Any], Any], carry: Any
) -> Any:
    """Apply ``visit`` to each of the stacked ``layers``, its index and ``carry``, in order; return the last carry.

    This is a scan, or an unrolled loop if the layers' matrices are separate arrays.
    """
    graph, stacked = nnx.split(layers)

    def run(params: Any, carry: Any, index: Int[Array, ""]) -> Any:
        return visit(cast(Layer, nnx.merge(graph, params)), index, carry)

    values = jax.tree.leaves(stacked, is_leaf=lambda value: isinstance(value, SeparateWeights))
    if any(isinstance(value, SeparateWeights) for value in values):
        once = jax.jit(run)  # so that one trace serves all layers
        for layer in range(num_layers):
            carry = once(slice_layer(stacked, layer), carry, jnp.int32(layer))
        return carry
    carry, _ = lax.scan(
        lambda carry, index: (run(slice_layer(stacked, index), carry, index), None), carry, jnp.arange(num_layers)
    )
    return carry


def project(
    layer: Layer,
    x: Float[Array, "T E"],
    cache: KVCache,
    index: Int[Array, ""],
    slots: Int[Array, "T"],
    angles: Angles | None,
    num_tokens: Int[Array, ""],
) -> KVCache:
    """Return the cache with K and V, in its layer ``index``, of tokens whose inputs to ``layer`` are ``x``.

    Those of token t are written to ``slots[t]``. They are what the layer writes in a step (KVPR, arXiv 2411.17089), bit
    for bit if the rows of a product do not depend on their number, else up to rounding. Slots are those of whole
    blocks, as for ``KVCache.write``; slots of tokens from ``num_tokens`` on must be past the last slot.
    """
    attn, recompute = layer.attn, cache.kernels.partial_recompute

    def norm(x: Float[Array, "T E"]) -> Float[Array, "T E"]:
        return x if layer.input_norm is None else layer.input_norm(x, num_tokens, cache.kernels)

    if recompute is None:
        _, k, v = attn.projected(norm(x), num_tokens, angles)
        return cache.write(index, k, v, slots)
    weight, bias = attn.qkv.weight.get_value()[None], attn.qkv.bias
    biases = None if bias is None else bias[...][None]
    data = recompute(cache.data, index, x, weight, biases, angles, slots, norm=norm, run=cache.block_size)
    return replace(cache, data=data)


def slice_layer(stacked: Any, index: Any) -> Any:
    """Return the parameters of layer ``index``, in the structure of ``stacked``, which has those of all layers."""

    def of_layer(value: Any) -> Any:
        return value.at(index) if isinstance(value, _PICKED) else value[index]

    return jax.tree.map(of_layer, stacked, is_leaf=lambda value: isinstance(value, _PICKED))
