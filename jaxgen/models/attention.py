"""Self-attention: projections, rotation, this step's keys and values written, then attention through block tables."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgen.core.config import ModelConfig
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.kernels.choice import Angles
from jaxgen.models.batch import StepBatch
from jaxgen.models.kv_cache import KVCache
from jaxgen.models.layer_pattern import NO_KIND, layers_of
from jaxgen.models.linear import Linear, Shape
from jaxgen.models.mixed_weight import KernelWeight
from jaxgen.models.norms import HeadNorm, Norm, make_norm
from jaxgen.models.walk import LayerContext

RowNorm = Callable[[Float[Array, "T D"]], Float[Array, "T D"]]
"""Normalises each row."""


def plan_attention(config: ModelConfig, cache: KVCache, batch: StepBatch) -> StepBatch:
    """Return the batch with the attention kernel's plan of its rows, if there is one, for each window of the layers."""
    make = cache.kernels.plan_attention
    if make is None:
        return batch
    q = jnp.zeros((len(batch.tokens), config.num_heads, config.head_dim), config.dtype)  # only its shape is used
    rows = batch.query_starts, batch.context_lens, batch.num_rows, batch.num_decodes
    layers = layers_of(config, len(cache.arrays))
    kind_of = {at.window: at.kind for at in layers if at.kind != NO_KIND}
    plans = {window or 0: make(q, cache.arrays[kind], *rows, window=window) for window, kind in kind_of.items()}
    return replace(batch, attention_plan=plans)


def attend(
    config: DecoderConfig,
    q: Float[Array, "T H D"],
    cache: KVCache,
    at: LayerContext,
    sinks: Float[Array, "H"] | None = None,
) -> Float[Array, "T H D"]:
    """Return causal self-attention of the batch's tokens, whose K and V the cache has."""
    batch, kernels, window = at.batch, at.kernels, at.window
    assert isinstance(batch, StepBatch), "only rows attend"
    planned = {} if kernels.plan_attention is None else {"plan": batch.attention_plan[window or 0]}
    out: Array = kernels.ragged_paged_attention(
        q,
        cache.arrays[at.kind],
        at.place,
        batch.block_tables[at.kind],
        batch.query_starts,
        batch.context_lens,
        batch.num_rows,
        batch.num_decodes,
        scale=config.score_scale,
        window=window,
        soft_cap=config.attention.soft_cap,
        sinks=sinks,
        **planned,
    )
    return out


class Attention(nnx.Module):
    """Causal self-attention over the blocked cache. Queries, their gates, keys and values are projected by one product.

    The output is of all heads together; ``out`` projects it.
    """

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs, stack: Shape):
        self.config = config
        options, dtype = config.attention, config.dtype
        heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
        size = config.hidden_size
        projected = heads * (2 if options.output_gate else 1) + 2 * kv_heads
        self.qkv = Linear(size, projected * width, bias=options.qkv_bias, dtype=dtype, rngs=rngs, stack=stack)
        self.out = Linear(heads * width, size, bias=options.out_bias, dtype=dtype, rngs=rngs, stack=stack)
        self.q_norm = self._make_norm(heads, stack)
        self.k_norm = self._make_norm(kv_heads, stack)
        self.sinks = nnx.Param(jnp.zeros((*stack, heads), jnp.float32)) if options.sinks else None

    def _make_norm(self, heads: int, stack: Shape) -> Norm | None:
        options, width = self.config.attention, self.config.head_dim
        if options.qk_norm is None:
            return None
        if options.qk_norm_heads:
            return HeadNorm(options.qk_norm, heads, width, dtype=self.config.dtype, stack=stack)
        return make_norm(
            options.qk_norm, heads * width if options.qk_norm_rows else width, dtype=self.config.dtype, stack=stack
        )

    def __call__(
        self, x: Float[Array, "T D"], cache: KVCache, at: LayerContext
    ) -> tuple[Float[Array, "T HD"], KVCache]:
        """Return the output of all heads, and the cache with the tokens' K and V."""
        projected = self.qkv(x, at.num_tokens)
        q, k, v = self._split(projected, at)
        sinks = None if self.sinks is None else self.sinks[...]
        cache = cache.write(at.kind, at.place, k, v, at.slots)
        out = attend(self.config, q, cache, at, sinks).reshape(x.shape[0], -1)
        return self._gated(out, projected), cache

    def keys_values(self, x: Float[Array, "T D"], norm: RowNorm, cache: KVCache, at: LayerContext) -> KVCache:
        """Return the cache with K and V of ``norm(x)``; see ``Layer.keys_values``."""
        weight, kernels = self.qkv.weight.get_value(), at.kernels
        if kernels.partial_recompute is None or isinstance(weight, KernelWeight):
            _, k, v = self._split(self.qkv(norm(x), at.num_tokens), at)
            return cache.write(at.kind, at.place, k, v, at.slots)
        biases = None if self.qkv.bias is None else self.qkv.bias[...][None]
        k_norm = None if self.k_norm is None else partial(self._normed, self.k_norm, at=at)
        options: dict[str, Any] = {"norm": norm, "k_norm": k_norm, "run": cache.block_size}
        array, angles = cache.arrays[at.kind], at.positional.angles
        array = kernels.partial_recompute(array, at.place, x, weight[None], biases, angles, at.slots, **options)
        return cache.with_array(array, at.kind)

    def _split(
        self, projected: Float[Array, "T N"], at: LayerContext
    ) -> tuple[Float[Array, "T H d"], Float[Array, "T K d"], Float[Array, "T K d"]]:
        """Return queries, keys and values of the tokens, for all heads."""
        heads, kv_heads, width = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        positional, num_tokens = at.positional, at.num_tokens

        def take(first: int, count: int, norm: Norm | None, angles: Angles | None) -> Array:
            rows = projected
            if norm is not None:
                part = self._normed(norm, take(first, count, None, None), at)
                rows, first = part.reshape(len(part), -1), 0
            taken: Array = at.kernels.rotated_heads(rows, angles, num_tokens, first=first, heads=count, head_dim=width)
            return taken

        keys = 2 * heads if self.config.attention.output_gate else heads
        q = take(0, heads, self.q_norm, positional.angles)
        k = take(keys, kv_heads, self.k_norm, positional.angles)
        v = take(keys + kv_heads, kv_heads, None, None)
        if positional.query_scale is not None:
            q = (q.astype(jnp.float32) * positional.query_scale).astype(q.dtype)
        return q, k, v

    def _gated(self, out: Float[Array, "T HD"], projected: Float[Array, "T N"]) -> Float[Array, "T HD"]:
        """Return what the heads read, times its gate if it has one."""
        if not self.config.attention.output_gate:
            return out
        gate = jax.nn.sigmoid(projected[:, out.shape[1] : 2 * out.shape[1]].astype(jnp.float32))
        return (out.astype(jnp.float32) * gate).astype(out.dtype)

    def _normed(self, norm: Norm, x: Float[Array, "T H d"], at: LayerContext) -> Float[Array, "T H d"]:
        """Return queries or keys as they are rotated."""
        T, H, d = x.shape
        if self.config.attention.qk_norm_rows or self.config.attention.qk_norm_heads:
            return norm(x.reshape(T, H * d), at.num_tokens, at.kernels).reshape(x.shape)
        return norm(x.reshape(T * H, d), jnp.asarray(at.num_tokens) * H, at.kernels).reshape(x.shape)
