"""Write new keys and values into their slots of the blocked KV cache."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from pallas_kernels.kv_codes import SCALE_BYTES, code_rows, encode, scale_rows


def write_kv_ref(
    cache: Num[Array, "N L P K B W"],
    layer: Int[Array, ""],
    k: Float[Array, "T K D"],
    v: Float[Array, "T K D"] | None,
    slots: Int[Array, "T"],
) -> Num[Array, "N L P K B W"]:
    """Return the cache with token t's K and V of ``layer`` at ``slots[t]`` = block * B + offset.

    ``v``: None for a cache of one part, P = 1, whose values are the first numbers of its keys; else P = 2.

    A slot of N * B or more writes nothing (padding). Slots must be distinct and not negative. K and V become
    rows of the cache (pallas_kernels.kv_codes): cast to its dtype, W = D, or codes with a scale, W = D + 4. In place
    when the cache is donated. Bytes moved: P * T * K * W * itemsize, read and written.
    """
    block_size = cache.shape[4]
    kv = encode(jnp.stack([k] if v is None else [k, v], axis=1), cache.dtype)
    return cache.at[slots // block_size, layer, :, :, slots % block_size].set(kv, mode="drop")


def write_kv_apart(
    cache: Num[Array, "N L P K B W"],
    layer: Int[Array, ""],
    k: Float[Array, "T K D"],
    v: Float[Array, "T K D"] | None,
    slots: Int[Array, "T"],
) -> Num[Array, "N L P K B W"]:
    """Return what ``write_kv_ref`` does of a cache of codes, whose scales are ``kv_codes.apart``."""
    _, _, P, K, B, W = cache.shape
    rows = encode(jnp.stack([k] if v is None else [k, v], axis=1), cache.dtype)
    block, offset = (slots // B)[:, None, None], (slots % B)[:, None, None]
    head = jnp.arange(P * K).reshape(P, K)
    codes = code_rows(cache).at[block, layer, head * B + offset]
    written = scale_rows(codes.set(rows[..., :-SCALE_BYTES], mode="drop").reshape(cache.shape))
    first = P * K * (W - SCALE_BYTES) + head[..., None] * SCALE_BYTES
    scales = written.at[block[..., None], layer, first + jnp.arange(SCALE_BYTES), offset[..., None]]
    return scales.set(rows[..., -SCALE_BYTES:], mode="drop").reshape(cache.shape)
