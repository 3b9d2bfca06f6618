"""Turn a layer's projection into its queries, and into keys and values in the blocked KV cache."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from pallas_kernels.kv_codes import head_dim_of
from pallas_kernels.norms import rms_norm_ref
from pallas_kernels.rotary import Angles, rotated_heads_ref
from pallas_kernels.write_kv import write_kv_ref

HeadNorms = tuple[Float[Array, "D"], Float[Array, "D"]]
"""Weights of the RMS norms that queries and keys have before they are rotated."""


def rotate_write_ref(
    projected: Float[Array, "T N"],
    cache: Num[Array, "M L 2 K B W"],
    layer: Int[Array, ""],
    slots: Int[Array, "T"],
    num_tokens: Int[Array, ""],
    angles: Angles | None,
    norms: HeadNorms | None = None,
    query_scale: Float[Array, "T 1 1"] | None = None,
    *,
    heads: int,
    first_key: int,
    eps: float = 0.0,
    plan: Any = None,
) -> tuple[Float[Array, "T H D"], Num[Array, "M L 2 K B W"]]:
    """Return the queries, rotated, and the cache with token t's keys, rotated, and values at ``slots[t]``.

    Heads of ``projected`` are H = ``heads`` queries, then others up to number ``first_key``, then K keys and K values.
    Each is D numbers. ``norms``: of each head of queries and keys, with ``eps``, before the rotation. ``query_scale``
    multiplies rotated queries in float32. Slots are as for write_kv_ref. Queries from ``num_tokens`` on are undefined.

    ``plan``: of attention, or None. A kernel may lay queries out for the attention of that plan.
    """
    del plan
    K, D = cache.shape[3], head_dim_of(cache.shape[5], cache.dtype)

    def turned(first: int, count: int, weight: Array | None) -> Array:
        rows = projected.reshape(len(projected), -1, D)[:, first : first + count]
        if weight is not None:
            rows = rms_norm_ref(rows.reshape(-1, D), weight, num_tokens * count, eps=eps).reshape(rows.shape)
        flat = rows.reshape(len(rows), -1)
        return rotated_heads_ref(flat, angles, num_tokens, first=0, heads=count, head_dim=D)

    of_queries, of_keys = norms or (None, None)
    q = turned(0, heads, of_queries)
    if query_scale is not None:
        q = (q.astype(jnp.float32) * query_scale).astype(q.dtype)
    k = turned(first_key, K, of_keys)
    v = projected.reshape(len(projected), -1, D)[:, first_key + K : first_key + 2 * K]
    return q, write_kv_ref(cache, layer, k, v, slots)
