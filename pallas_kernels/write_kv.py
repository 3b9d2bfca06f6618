"""Write new keys and values into their slots of the blocked KV cache."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def write_kv_ref(
    cache: Float[Array, "N L 2 K B D"],
    layer: Int[Array, ""],
    k: Float[Array, "T K D"],
    v: Float[Array, "T K D"],
    slots: Int[Array, "T"],
) -> Float[Array, "N L 2 K B D"]:
    """Return the cache with token t's K and V of ``layer`` at ``slots[t]`` = block * B + offset.

    A slot of N * B or more writes nothing (padding). Slots must be distinct and not negative. K and V are cast to the
    cache's dtype. In place when the cache is donated. Bytes moved: 2 * T * K * D * itemsize, read and written.
    """
    block_size = cache.shape[4]
    kv = jnp.stack([k, v], axis=1).astype(cache.dtype)
    return cache.at[slots // block_size, layer, :, :, slots % block_size].set(kv, mode="drop")
