"""The memory warpgroup of a walk: copies queries, keys and values to shared memory as soon as there is room."""

from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gpu.attention_config import QUERY_SLOTS, Item, Ref, Scalar, Walk, for_each_item
from pallas_kernels.gpu.attention_items import GRANULE, KV_TILE, WARPGROUP_ROWS


def fetch(walk: Walk, refs: dict[str, Ref], shared: dict[str, Ref]) -> None:
    """For every item of this program; returns when all that was fetched has been consumed."""

    def item(n: Scalar, item: Item, fetched: Scalar) -> Scalar:
        _fetch_queries(walk, refs, shared, n, item)
        return lax.fori_loop(item.begin, item.end, partial(_fetch_tile, walk, refs, shared, item), fetched)

    items, tiles = for_each_item(walk, refs, item)
    for slot in range(QUERY_SLOTS):
        pl.when(items > slot)(partial(plgpu.barrier_wait, shared["q_consumed"].at[slot]))
    for stage in range(walk.stages):
        pl.when(tiles > stage)(partial(plgpu.barrier_wait, shared["consumed"].at[stage]))


def _fetch_queries(walk: Walk, refs: dict[str, Ref], shared: dict[str, Ref], n: Scalar, item: Item) -> None:
    slot = lax.rem(n, QUERY_SLOTS)
    pl.when(n >= QUERY_SLOTS)(lambda: plgpu.barrier_wait(shared["q_consumed"].at[slot]))
    for group in range(walk.compute_groups):
        first = pl.multiple_of(item.granule * GRANULE + group * WARPGROUP_ROWS, GRANULE)
        source = refs["q"].at[item.head, pl.ds(first, WARPGROUP_ROWS)]
        plgpu.copy_gmem_to_smem(source, shared["q"].at[slot, group], shared["q_full"].at[slot])


def _fetch_tile(
    walk: Walk, refs: dict[str, Ref], shared: dict[str, Ref], item: Item, tile: Scalar, fetched: Scalar
) -> Scalar:
    stage = lax.rem(fetched, walk.stages)
    # The table is read before the wait, which hides its latency.
    sources = [slots_of(walk, refs, item, tile, copy) for copy in range(walk.copies)]
    pl.when(fetched >= walk.stages)(lambda: plgpu.barrier_wait(shared["consumed"].at[stage]))
    for which, name in enumerate("kv"):
        for copy, (block, slots) in enumerate(sources):
            source = refs["cache"].at[block, refs["layer"][0], which, item.head, slots]
            target = shared[name].at[stage]
            if walk.copies > 1:
                target = target.at[pl.ds(copy * walk.block_size, walk.block_size)]
            plgpu.copy_gmem_to_smem(source, target, shared[f"{name}_full"].at[stage])
    return fetched + 1


def slots_of(walk: Walk, refs: dict[str, Ref], item: Item, tile: Scalar, copy: int) -> tuple[Scalar, Any]:
    """The block and the slots in it of one copy of a KV tile; past the context those of the context's last block again,
    which are masked."""
    last = refs["context_lens"][item.row] - 1
    token = jnp.minimum(tile * KV_TILE + copy * walk.block_size, last)
    count = min(walk.block_size, KV_TILE)
    start = lax.rem(lax.div(token, count), walk.block_size // count) * count
    return refs["tables"][item.row, lax.div(token, walk.block_size)], pl.ds(pl.multiple_of(start, count), count)
