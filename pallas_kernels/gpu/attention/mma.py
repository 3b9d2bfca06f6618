"""Walk over contexts on GPUs without wgmma.

A CTA is one warpgroup. It computes a tile of 64 packed queries while its next keys and values are copied to shared
memory. The copies are by cp.async on Ampere and Ada. On Blackwell they are in bulk, because Mosaic has no cp.async for
it. The interpreter knows neither cp.async nor ``mma``; plain assignments and products stand for them there.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gpu.attention.config import Scalar, Walk, WorkItem, for_each_item, slots_of, tiled
from pallas_kernels.gpu.attention.items import GRANULE, KV_TILE, WARPGROUP_ROWS
from pallas_kernels.gpu.attention.online_softmax import Part, normalized
from pallas_kernels.gpu.attention.tile import ends_within, hide_rest, walk_item, weigh
from pallas_kernels.gpu.persistent import Ref, copy, put

STAGES = 2
"""KV tiles in shared memory: with more, heads of 128 would not fit on Ada."""
_DEPTH = 64
"""Of a step of the product of queries and keys. Operands are in registers: few, so that they need not be spilled."""
_TOKENS = 32
"""Of a step of the product of weights and values."""


def scratch(walk: Walk) -> dict[str, Any]:
    rows, D = WARPGROUP_ROWS, walk.head_dim
    width = next(n for n in (32, 16) if D % n == 0)
    barriers = {
        "q_full": plgpu.Barrier(),
        "q_consumed": plgpu.Barrier(),
        "kv_full": plgpu.Barrier(num_arrivals=2 * walk.copies, num_barriers=STAGES),
        "consumed": plgpu.Barrier(num_barriers=STAGES),
    }
    return {
        "q": tiled((rows, D), walk.dtype),
        "k": tiled((STAGES, KV_TILE, D), walk.dtype),
        "v": tiled((STAGES, KV_TILE, D), walk.dtype),
        "weights": tiled((KV_TILE // _TOKENS, rows, _TOKENS), walk.dtype),
        "output": plgpu.SMEM((rows, width), jnp.float32 if walk.in_pieces else walk.dtype),
        **(barriers if walk.bulk else {}),
    }


def run(walk: Walk, refs: dict[str, Ref], shared: dict[str, Ref]) -> None:
    """Run a CTA."""
    items, tiles = for_each_item(walk, refs, partial(_attend, walk, refs, shared))
    if walk.bulk:
        pl.when(items > 0)(lambda: plgpu.barrier_wait(shared["q_consumed"]))
        for stage in range(STAGES):
            pl.when(tiles > stage)(partial(plgpu.barrier_wait, shared["consumed"].at[stage]))


def _attend(
    walk: Walk, refs: dict[str, Ref], shared: dict[str, Ref], n: Scalar, item: WorkItem, walked: Scalar
) -> Scalar:
    if walk.bulk:
        pl.when(n > 0)(lambda: plgpu.barrier_wait(shared["q_consumed"]))
    first = pl.multiple_of(item.granule * GRANULE, GRANULE)
    _fetch(walk, refs["q"].at[item.head, pl.ds(first, WARPGROUP_ROWS)], shared["q"], shared.get("q_full"))
    _fetch_tile(walk, refs, shared, item, item.begin, walked)
    if walk.bulk:
        plgpu.barrier_wait(shared["q_full"])
    part, walked = walk_item(walk, refs, item, 0, partial(_fold, walk, refs, shared, item), walked)
    if walk.bulk:
        plgpu.barrier_arrive(shared["q_consumed"])
    if walk.in_pieces:
        place = item.index, item.head
        put(refs["result_maximum"].at[place], part.maximum)
        put(refs["result_total"].at[place], part.total)
        output, places = part.output, refs["result_output"].at[place]
        granules = [(True, places.at[pl.ds(g * GRANULE, GRANULE)]) for g in range(walk.piece_granules)]
    else:
        output, places = normalized(part).astype(walk.dtype), refs["result_output"].at[item.head]
        queries = refs["queries"][item.index]
        granules = [(g * GRANULE < queries, places.at[item.granule + g]) for g in range(WARPGROUP_ROWS // GRANULE)]
    _store(walk, shared["output"], output, granules)
    return walked


def _fold(
    walk: Walk, refs: dict[str, Ref], shared: dict[str, Ref], item: WorkItem, tile: Scalar, carry: tuple[Part, Scalar]
) -> tuple[Part, Scalar]:
    """Fold one more KV tile into the result."""
    part, walked = carry
    stage = lax.rem(walked, STAGES)
    if walk.bulk:
        plgpu.barrier_wait(shared["kv_full"].at[stage])
    elif not walk.interpret:
        plgpu.wait_gmem_to_smem(0)  # so all warps have left the tile before, and its stage is free
    pl.when(tile + 1 < item.end)(lambda: _fetch_tile(walk, refs, shared, item, tile + 1, walked + 1))
    q, k, v, staging = shared["q"], shared["k"].at[stage], shared["v"].at[stage], shared["weights"]
    pl.when(ends_within(item, tile))(partial(hide_rest, walk, item, tile, v))
    depths = [pl.ds(first, min(_DEPTH, walk.head_dim - first)) for first in range(0, walk.head_dim, _DEPTH)]
    products = plgpu.layout_cast(jnp.zeros((WARPGROUP_ROWS, KV_TILE), jnp.float32), walk.layout)
    for depth in depths:
        products = _add_product(walk, products, q.at[:, depth], k.at[:, depth].transpose((1, 0)))
    part, weights = weigh(walk, item.origin, tile, products, part)
    steps = range(KV_TILE // _TOKENS)
    for i in steps:
        put(staging.at[i], weights[:, i * _TOKENS : (i + 1) * _TOKENS])
    output = part.output
    for i in steps:
        output = _add_product(walk, output, staging.at[i], v.at[pl.ds(i * _TOKENS, _TOKENS)])
    if walk.bulk:
        plgpu.commit_smem()  # bulk copies follow what was read
        plgpu.barrier_arrive(shared["consumed"].at[stage])
    return part._replace(output=output), walked + 1


def _fetch_tile(
    walk: Walk, refs: dict[str, Ref], shared: dict[str, Ref], item: WorkItem, tile: Scalar, fetched: Scalar
) -> None:
    """``fetched``: KV tiles that this CTA has fetched before."""
    stage, full = lax.rem(fetched, STAGES), None
    if walk.bulk:
        full = shared["kv_full"].at[stage]
        pl.when(fetched >= STAGES)(lambda: plgpu.barrier_wait(shared["consumed"].at[stage]))
    for number in range(walk.copies):
        block, slots = slots_of(walk, refs, item, tile, number)
        for which, name in enumerate("kv"):
            target = shared[name].at[stage]
            if walk.copies > 1:
                target = target.at[pl.ds(number * walk.block_size, walk.block_size)]
            _fetch(walk, refs["cache"].at[block, refs["layer"][0], which, item.head, slots], target, full)


def _fetch(walk: Walk, source: Ref, target: Ref, full: Ref | None) -> None:
    """Begin a copy that arrives at the barrier ``full``, or, where there is none, with all others."""
    if full is not None:
        plgpu.copy_gmem_to_smem(source, target, full)
    elif walk.interpret:
        target[...] = source[...]
    else:
        plgpu.copy_gmem_to_smem(source, target, oob_mode=plgpu.OOBFillMode.PROMISE_IN_BOUNDS)


def _add_product(walk: Walk, sums: Any, left: Ref, right: Ref) -> Any:
    """sums + left x right."""
    if walk.interpret:
        return sums + jnp.matmul(left[...], right[...], preferred_element_type=jnp.float32)
    first = plgpu.load(left, layout=plgpu.Layout.MMA_LHS(walk.dtype))
    return plgpu.mma(sums, first, plgpu.load(right, layout=plgpu.Layout.MMA_RHS(walk.dtype)))


def _store(walk: Walk, staging: Ref, values: Any, granules: list[tuple[Scalar, Ref]]) -> None:
    """Granules of ``values`` [WARPGROUP_ROWS, D], each if and where ``granules`` says; through shared memory, because a
    granule's rows are in the registers of several warps."""
    width = staging.shape[1]
    for first in range(0, walk.head_dim, width):
        put(staging, values[:, first : first + width])
        for g, (wanted, place) in enumerate(granules):
            source = staging.at[pl.ds(g * GRANULE, GRANULE)]
            pl.when(wanted)(partial(copy, source, place.at[:, pl.ds(first, width)]))
