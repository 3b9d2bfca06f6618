"""Attention as the models see it: write this step's keys and values, then attend through the block tables."""

from jaxtyping import Array, Float, Int

from jaxgen.config import ModelConfig
from jaxgen.kv_cache import KVCache
from jaxgen.step_batch import StepBatch


def attend(
    config: ModelConfig,
    q: Float[Array, "T H D"],
    k: Float[Array, "T K D"],
    v: Float[Array, "T K D"],
    cache: KVCache,
    layer: Int[Array, ""],
    batch: StepBatch,
) -> tuple[Float[Array, "T H D"], KVCache]:
    """Causal self-attention of the batch's tokens in one layer; scores are scaled by 1 / sqrt(head_dim)."""
    cache = cache.write(layer, k, v, batch.slots)
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
    )
    return out, cache
