"""Attention for the models: write this step's keys and values, then attend through the block tables."""

from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxgen.core.config import ModelConfig
from jaxgen.models.batch import StepBatch
from jaxgen.models.kv_cache import KVCache


def plan_attention(config: ModelConfig, cache: KVCache, batch: StepBatch) -> StepBatch:
    """Return the batch with the attention kernel's plan of its rows, made once for all layers, if there is one."""
    make = cache.kernels.plan_attention
    if make is None:
        return batch
    q = jnp.zeros((len(batch.tokens), config.num_heads, config.head_dim), cache.data.dtype)  # only its shape is used
    rows = batch.query_starts, batch.context_lens, batch.num_rows, batch.num_decodes
    return replace(batch, attention_plan=make(q, cache.data, *rows, window=config.sliding_window))


def attend(
    config: ModelConfig,
    q: Float[Array, "T H D"],
    k: Float[Array, "T K D"],
    v: Float[Array, "T K D"],
    cache: KVCache,
    layer: Int[Array, ""],
    batch: StepBatch,
) -> tuple[Float[Array, "T H D"], KVCache]:
    """Compute causal self-attention of the batch's tokens in one layer, with scores scaled by 1 / sqrt(head_dim).

    Returns the output, and the cache with the tokens' K and V.
    """
    cache = cache.write(layer, k, v, batch.slots)
    planned = {} if cache.kernels.plan_attention is None else {"plan": batch.attention_plan}
    out = cache.kernels.ragged_paged_attention(
        q,
        cache.data,
        layer,
        batch.block_tables,
        batch.query_starts,
        batch.context_lens,
        batch.num_rows,
        batch.num_decodes,
        scale=config.head_dim**-0.5,
        window=config.sliding_window,
        **planned,
    )
    return out, cache
