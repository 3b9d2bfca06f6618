"""Self-attention: projections, rotation, this step's keys and values written, then attention through block tables."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.layer_kind import LayerKind
from jaxgen.core.model_config import ModelConfig
from jaxgen.kernels.choice import Angles
from jaxgen.models.batch import StepBatch
from jaxgen.models.kv_cache import KVCache
from jaxgen.models.layer_pattern import NO_KIND, layers_of
from jaxgen.models.linear import Linear, Shape
from jaxgen.models.mixed_weight import KernelWeight
from jaxgen.models.norms import HeadNorm, Norm, RMSNorm, ValueNorm, make_norm
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
    q: Any,
    cache: KVCache,
    at: LayerContext,
    sinks: Float[Array, "H"] | None = None,
    value_dim: int | None = None,
) -> Float[Array, "T H V"]:
    """Return causal self-attention of the batch's tokens, whose K and V the cache has.

    ``q``: queries [T, H, D], or what ``rotate_write`` of the same kernels has made of them. ``value_dim``: the first
    numbers of keys that are the values, where the cache has one part.
    """
    batch, plan = at.batch, _plan_of(at)
    assert isinstance(batch, StepBatch), "only rows attend"
    options: dict[str, Any] = {} if value_dim is None else {"value_dim": value_dim}
    if plan is not None:
        options["plan"] = plan
    out: Array = at.kernels.ragged_paged_attention(
        q,
        cache.arrays[at.kind],
        at.place,
        batch.block_tables[at.kind],
        batch.query_starts,
        batch.context_lens,
        batch.num_rows,
        batch.num_decodes,
        scale=config.score_scale,
        window=at.window,
        soft_cap=config.attention.soft_cap,
        sinks=sinks,
        **options,
    )
    return out


def _plan_of(at: LayerContext) -> Any:
    """Return the attention kernel's plan of the batch for a layer; None: it takes none, or no row attends."""
    if at.kernels.plan_attention is None or not isinstance(at.batch, StepBatch):
        return None
    return at.batch.attention_plan[at.window or 0]


class Attention(nnx.Module):
    """Causal self-attention over the blocked cache. Queries, their gates, keys and values are projected by one product.

    The output is of all heads together; ``out`` projects it.
    """

    def __init__(self, config: DecoderConfig, kind: LayerKind = "attention", *, rngs: nnx.Rngs, stack: Shape):
        self.config, self.shape = config, config.heads_of(kind)
        options, dtype = config.attention, config.dtype
        heads, kv_heads, width = config.num_heads, self.shape.kv_heads, self.shape.head_dim
        size = config.hidden_size
        projected = heads * (2 if options.output_gate else 1) + self.shape.projections * kv_heads
        self.qkv = Linear(size, projected * width, bias=options.qkv_bias, dtype=dtype, rngs=rngs, stack=stack)
        bias, divided = options.out_bias, config.num_devices > 1
        self.out = Linear(heads * width, size, bias=bias, dtype=dtype, rngs=rngs, stack=stack, divided=divided)
        self.q_norm = self._make_norm(heads, stack)
        self.k_norm = None if self.shape.reads else self._make_norm(kv_heads, stack)
        self.v_norm = ValueNorm(options.qk_norm.eps) if options.v_norm and options.qk_norm is not None else None
        self.sinks = nnx.Param(jnp.zeros((*stack, heads), jnp.float32)) if options.sinks else None

    def _make_norm(self, heads: int, stack: Shape) -> Norm | None:
        options, width = self.config.attention, self.shape.head_dim
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
        q, cache = self._written(projected, cache, at)
        sinks = None if self.sinks is None else self.sinks[...]
        out = attend(self.config, q, cache, at, sinks).reshape(x.shape[0], -1)
        return self._gated(out, projected), cache

    def keys_values(self, x: Float[Array, "T D"], norm: RowNorm, cache: KVCache, at: LayerContext) -> KVCache:
        """Return the cache with K and V of ``norm(x)``; see ``Layer.keys_values``."""
        weight, kernels = self.qkv.weight.get_value(), at.kernels
        recompute = None if kernels.scales_apart else kernels.partial_recompute  # which writes rows of codes
        if recompute is None or isinstance(weight, KernelWeight) or not self._is_plain:
            return self._written(self.qkv(norm(x), at.num_tokens), cache, at)[1]
        biases = None if self.qkv.bias is None else self.qkv.bias[...][None]
        k_norm = None if self.k_norm is None else partial(self._normed, self.k_norm, at=at)
        options: dict[str, Any] = {"norm": norm, "k_norm": k_norm, "run": cache.block_size}
        array, angles = cache.arrays[at.kind], at.positional.angles
        array = recompute(array, at.place, x, weight[None], biases, angles, at.slots, **options)
        return cache.with_array(array, at.kind)

    @property
    def _is_plain(self) -> bool:
        """Whether values are what the last rows of the projection give."""
        return self.v_norm is None and self.shape.projections == 2

    def _written(self, projected: Float[Array, "T N"], cache: KVCache, at: LayerContext) -> tuple[Any, KVCache]:
        """Return the tokens' queries as their attention takes them, and the cache with their K and V."""
        rotate_write, positional, norms = at.kernels.rotate_write, at.positional, None
        of_heads: dict[str, Any] = {"heads": self.config.num_heads, "first_key": self._first_key}
        if rotate_write is None:
            q, written = self._split(projected, at)
            return q, cache if written is None else cache.write(at.kind, at.place, *written, at.slots)
        if self.q_norm is not None:
            assert isinstance(self.q_norm, RMSNorm), "such kernels are taken for no other norms"
            assert isinstance(self.k_norm, RMSNorm), "both are of one kind"
            norms, of_heads["eps"] = (self.q_norm.weight[...], self.k_norm.weight[...]), self.q_norm.eps
        here = cache.arrays[at.kind], at.place, at.slots, at.num_tokens
        about = positional.angles, norms, positional.query_scale
        q, array = rotate_write(projected, *here, *about, **of_heads, plan=_plan_of(at))
        return q, cache.with_array(array, at.kind)

    @property
    def _first_key(self) -> int:
        """The number of the first key among the heads of the projection."""
        return self.config.num_heads * (2 if self.config.attention.output_gate else 1)

    def _split(
        self, projected: Float[Array, "T N"], at: LayerContext
    ) -> tuple[Float[Array, "T H d"], tuple[Float[Array, "T K d"], Float[Array, "T K d"]] | None]:
        """Return queries of the tokens, for all heads, and their keys and values, unless those of a layer are read."""
        heads, kv_heads, width = self.config.num_heads, self.shape.kv_heads, self.shape.head_dim
        positional, num_tokens = at.positional, at.num_tokens

        def take(first: int, count: int, norm: Norm | ValueNorm | None, angles: Angles | None) -> Array:
            rows = projected
            if norm is not None:
                part = self._normed(norm, take(first, count, None, None), at)
                rows, first = part.reshape(len(part), -1), 0
            taken: Array = at.kernels.rotated_heads(rows, angles, num_tokens, first=first, heads=count, head_dim=width)
            return taken

        keys = self._first_key
        q = take(0, heads, self.q_norm, positional.angles)
        written = None
        if not self.shape.reads:
            values = keys if self.shape.keys_are_values else keys + kv_heads
            k = take(keys, kv_heads, self.k_norm, positional.angles)
            written = k, take(values, kv_heads, self.v_norm, None)
        if positional.query_scale is not None:
            q = (q.astype(jnp.float32) * positional.query_scale).astype(q.dtype)
        return q, written

    def _gated(self, out: Float[Array, "T HD"], projected: Float[Array, "T N"]) -> Float[Array, "T HD"]:
        """Return what the heads read, times its gate if it has one."""
        if not self.config.attention.output_gate:
            return out
        gate = jax.nn.sigmoid(projected[:, out.shape[1] : 2 * out.shape[1]].astype(jnp.float32))
        return (out.astype(jnp.float32) * gate).astype(out.dtype)

    def _normed(self, norm: Norm | ValueNorm, x: Float[Array, "T H d"], at: LayerContext) -> Float[Array, "T H d"]:
        """Return queries or keys as they are rotated."""
        T, H, d = x.shape
        of_rows = self.config.attention.qk_norm_rows or self.config.attention.qk_norm_heads
        if of_rows and not isinstance(norm, ValueNorm):
            return norm(x.reshape(T, H * d), at.num_tokens, at.kernels).reshape(x.shape)
        return norm(x.reshape(T * H, d), jnp.asarray(at.num_tokens) * H, at.kernels).reshape(x.shape)
