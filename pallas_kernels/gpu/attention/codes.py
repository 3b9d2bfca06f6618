"""Walk over a cache of 8-bit codes: fetch tiles of codes, and make the numbers that they stand for.

On Hopper one more warpgroup converts each tile in shared memory. The warpgroups that compute find the same numbers
there as in a cache that holds numbers, so they compute the same.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gpu.attention.config import Scalar, Walk, WorkItem, for_each_item, slots_of
from pallas_kernels.gpu.attention.items import KV_TILE
from pallas_kernels.gpu.persistent import Ref, put
from pallas_kernels.kv_codes import SCALE_BYTES

COLUMNS = 128
"""Most columns of a tile that are converted at a time: registers are few."""


def fetch_codes(
    walk: Walk, refs: dict[str, Ref], shared: dict[str, Ref], item: WorkItem, tile: Scalar, fetched: Scalar
) -> Scalar:
    """Fetch the codes of a tile's keys and values, and the bytes of their scales."""
    stage = lax.rem(fetched, walk.code_stages)
    block, slots = slots_of(walk, refs, item, tile, 0)
    pl.when(fetched >= walk.code_stages)(lambda: plgpu.barrier_wait(shared["codes_consumed"].at[stage]))
    layer, full, heads = refs["layer"][0], shared["codes_full"].at[stage], 2 * walk.kv_heads
    for which in range(2):
        head = which * walk.kv_heads + item.head
        rows = pl.ds(pl.multiple_of(head * walk.block_size + slots.start, KV_TILE), KV_TILE)
        plgpu.copy_gmem_to_smem(refs["cache"].at[block, layer, rows], shared["codes"].at[stage, which], full)
        planes = pl.ds(heads * walk.head_dim + head * SCALE_BYTES, SCALE_BYTES)
        plgpu.copy_gmem_to_smem(refs["scales"].at[block, layer, planes, slots], shared["scales"].at[stage, which], full)
    return fetched + 1


def convert(walk: Walk, refs: dict[str, Ref], shared: dict[str, Ref]) -> None:
    """Convert the tiles of every item of this CTA."""

    def item(_: Scalar, item: WorkItem, converted: Scalar) -> Scalar:
        return lax.fori_loop(item.begin, item.end, partial(_convert_tile, walk, shared), converted)

    _, tiles = for_each_item(walk, refs, item)
    for stage in range(walk.stages):
        pl.when(tiles > stage)(partial(plgpu.barrier_wait, shared["consumed"].at[stage]))


def _convert_tile(walk: Walk, shared: dict[str, Ref], _: Scalar, converted: Scalar) -> Scalar:
    source, stage = lax.rem(converted, walk.code_stages), lax.rem(converted, walk.stages)
    plgpu.barrier_wait(shared["codes_full"].at[source])
    pl.when(converted >= walk.stages)(lambda: plgpu.barrier_wait(shared["consumed"].at[stage]))
    keys = [(0, shared["k"].at[stage])]
    values = [(i * walk.slice_dim, shared["v"].at[stage, i]) for i in range(walk.slices)]
    for which, targets, full in ((0, keys, shared["k_full"]), (1, values, shared["v_full"])):
        codes, scales = shared["codes"].at[source, which], shared["scales"].at[source, which]
        for first, target in targets:
            numbers_of_tile(walk, codes, scales, first, target)
        plgpu.commit_smem()
        plgpu.barrier_arrive(full.at[stage])
    plgpu.barrier_arrive(shared["codes_consumed"].at[source])
    return converted + 1


def numbers_of_tile(walk: Walk, codes: Ref, scales: Ref, first: int, target: Ref) -> None:
    """Put numbers [KV_TILE, columns] of a tile from column ``first`` into ``target``: code times scale in float32,
    rounded, as ``kv_codes.decode`` does."""
    layout = plgpu.Layout.WGMMA_UPCAST_4X if walk.wgmma else walk.layout
    scale = _scales(scales, layout.reduce(1))
    width = min(COLUMNS, target.shape[-1])
    for begin in range(0, target.shape[-1], width):
        loaded = plgpu.load(codes.at[:, pl.ds(first + begin, width)], layout=layout, optimized=False)
        numbers = _plain(loaded).astype(jnp.float32) * lax.broadcast_in_dim(scale, loaded.shape, (0,))
        put(target.at[:, pl.ds(begin, width)], numbers.astype(walk.dtype))


def _plain(codes: Any) -> Any:
    """Return the numbers of codes, which their own dtype or float16 holds."""
    if codes.dtype == jnp.int8:
        return codes.astype(jnp.bfloat16)
    return lax.bitcast_convert_type(codes, jnp.float8_e4m3fn).astype(jnp.float16)


def _scales(planes: Ref, layout: Any) -> Any:
    """Return a tile's scales [KV_TILE], of whose bytes each has a row of ``planes``."""
    word = jnp.zeros((KV_TILE,), jnp.int32)
    for i in range(SCALE_BYTES):
        byte = plgpu.load(planes.at[i], layout=layout, optimized=False).astype(jnp.int32) & 255
        word = byte if i == 0 else word | (byte << (8 * i))
    return lax.bitcast_convert_type(word, jnp.float32)
