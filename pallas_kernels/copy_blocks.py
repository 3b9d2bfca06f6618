"""Copy scattered blocks, over all layers, to and from one contiguous staging buffer, so that a transfer to or from host
memory is one copy of megabytes."""

import jax.numpy as jnp
from jaxtyping import Array, Int, Num


def gather_blocks_ref(
    cache: Num[Array, "N L P K B W"], ids: Int[Array, "m"], count: Int[Array, ""]
) -> Num[Array, "m L P K B W"]:
    """The first ``count`` of the blocks ``ids`` in order; what follows them is undefined.

    Ids from ``count`` on are not read. Bytes moved: ``count`` blocks, read and written.
    """
    del count  # to copy more than was asked for is right, and one shape
    return cache.at[ids].get(mode="clip")


def scatter_blocks_ref(
    cache: Num[Array, "N L P K B W"],
    ids: Int[Array, "m"],
    staging: Num[Array, "m L P K B W"],
    count: Int[Array, ""],
) -> Num[Array, "N L P K B W"]:
    """The cache with the first ``count`` blocks of ``staging`` as its blocks ``ids[:count]``, which must be distinct.

    Ids and staging from ``count`` on have no effect. In place when the cache is donated. Bytes moved: ``count`` blocks,
    read and written.
    """
    wanted = jnp.where(jnp.arange(len(ids)) < count, ids, len(cache))
    return cache.at[wanted].set(staging, mode="drop")
