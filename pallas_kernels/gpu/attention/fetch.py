"""The memory warpgroup of a walk: copies queries, keys and values to shared memory as soon as there is room."""

from functools import partial

from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gpu.attention.codes import fetch_codes
from pallas_kernels.gpu.attention.config import Scalar, Walk, WorkItem, for_each_item, slots_of
from pallas_kernels.gpu.attention.items import GRANULE, WARPGROUP_ROWS
from pallas_kernels.gpu.persistent import Ref


def fetch(walk: Walk, refs: dict[str, Ref], shared: dict[str, Ref]) -> None:
    """Fetch the operands of every item of this CTA; return when all of them have been consumed."""

    def item(n: Scalar, item: WorkItem, fetched: Scalar) -> Scalar:
        _fetch_queries(walk, refs, shared, n, item)
        return lax.fori_loop(item.begin, item.end, partial(_fetch_tile, walk, refs, shared, item), fetched)

    items, tiles = for_each_item(walk, refs, item)
    for slot in range(walk.query_slots):
        pl.when(items > slot)(partial(plgpu.barrier_wait, shared["q_consumed"].at[slot]))
    consumed = shared["consumed" if walk.codes is None else "codes_consumed"]
    for stage in range(walk.stages if walk.codes is None else walk.code_stages):
        pl.when(tiles > stage)(partial(plgpu.barrier_wait, consumed.at[stage]))


def _fetch_queries(walk: Walk, refs: dict[str, Ref], shared: dict[str, Ref], n: Scalar, item: WorkItem) -> None:
    slot = lax.rem(n, walk.query_slots)
    pl.when(n >= walk.query_slots)(lambda: plgpu.barrier_wait(shared["q_consumed"].at[slot]))
    for group in range(walk.tile_groups):
        first = pl.multiple_of(item.granule * GRANULE + group * WARPGROUP_ROWS, GRANULE)
        source = refs["q"].at[item.head, pl.ds(first, WARPGROUP_ROWS)]
        plgpu.copy_gmem_to_smem(source, shared["q"].at[slot, group], shared["q_full"].at[slot])


def _fetch_tile(
    walk: Walk, refs: dict[str, Ref], shared: dict[str, Ref], item: WorkItem, tile: Scalar, fetched: Scalar
) -> Scalar:
    if walk.codes is not None:
        return fetch_codes(walk, refs, shared, item, tile, fetched)
    stage = lax.rem(fetched, walk.stages)
    # The table is read before the wait, which hides its latency.
    sources = [slots_of(walk, refs, item, tile, copy) for copy in range(walk.copies)]
    pl.when(fetched >= walk.stages)(lambda: plgpu.barrier_wait(shared["consumed"].at[stage]))
    D, width = walk.head_dim, walk.slice_dim
    tiles = [(0, pl.ds(0, D), shared["k"].at[stage], shared["k_full"])]
    tiles += [(1, pl.ds(i * width, width), shared["v"].at[stage, i], shared["v_full"]) for i in range(walk.slices)]
    for which, columns, target, full in tiles:
        for copy, (block, slots) in enumerate(sources):
            source = refs["cache"].at[block, refs["layer"][0], which, item.head, slots, columns]
            rows = target.at[pl.ds(copy * walk.block_size, walk.block_size)] if walk.copies > 1 else target
            plgpu.copy_gmem_to_smem(source, rows, full.at[stage])
    return fetched + 1
