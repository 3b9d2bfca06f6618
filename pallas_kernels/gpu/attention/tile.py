"""Compute with each tile of keys and values in a walk, in the same order on every GPU."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gpu.attention.config import Scalar, Walk, WorkItem
from pallas_kernels.gpu.attention.items import GRANULE, KV_TILE, PIECE_TILES, WARPGROUP_ROWS
from pallas_kernels.gpu.attention.online_softmax import (
    FLOOR,
    MASKED,
    Part,
    along_rows,
    ceiling,
    merge,
    power_of_two,
    sink,
)
from pallas_kernels.gpu.persistent import Ref, put

Fold = Callable[[Scalar, tuple[Part, Scalar]], tuple[Part, Scalar]]
"""(tile, (of the tiles before it, tiles walked by this CTA)) -> the same with that tile."""


def walk_item(
    walk: Walk, refs: dict[str, Ref], item: WorkItem, rows: Scalar, fold: Fold, walked: Scalar
) -> tuple[Part, Scalar]:
    """An item's tiles: of one piece as they are; of more, piece by piece, which are merged from the left."""
    if walk.in_pieces:
        return lax.fori_loop(item.begin, item.end, fold, (_nothing(walk), walked))

    def piece(p: Scalar, carry: tuple[Part, Scalar]) -> tuple[Part, Scalar]:
        running, walked = carry
        first, last = jnp.maximum(item.begin, p * PIECE_TILES), jnp.minimum(item.end, (p + 1) * PIECE_TILES)
        part, walked = lax.fori_loop(first, last, fold, (_nothing(walk), walked))
        return merge(running, part), walked

    first, last = lax.div(item.begin, PIECE_TILES), lax.div(item.end + (PIECE_TILES - 1), PIECE_TILES)
    return lax.fori_loop(first, last, piece, (_beginning(walk, refs, rows, item), walked))


def weigh(walk: Walk, origin: Scalar, tile: Scalar, products: Any, part: Part) -> tuple[Part, Any]:
    """Return the part with a tile's weights, but not yet its values, and these weights in the values' dtype.

    ``products``: of a warpgroup's queries, the first of which is ``origin``, and the tile's keys.
    """
    if walk.soft_cap is not None:
        products = jnp.tanh(products * (walk.scale / walk.soft_cap))
    # Most tiles need no mask, and none is made for them.
    whole = all_seen(walk, origin, tile)
    scores = lax.cond(whole, lambda: products, lambda: jnp.where(_seen(walk, origin, tile), products, MASKED))
    maximum = jnp.maximum(part.maximum, ceiling(scores.max(axis=1) * walk.unit))
    keep = power_of_two(part.maximum - maximum)
    # One fused instruction in every kernel, whatever else a compiler makes of them.
    weights = jnp.exp2(scores * walk.unit - along_rows(maximum, scores.shape))
    total = part.total * keep + weights.sum(axis=1)
    output = part.output * along_rows(keep, part.output.shape)
    return Part(maximum, total, output), weights.astype(walk.dtype)


def all_seen(walk: Walk, origin: Scalar, tile: Scalar) -> Scalar:
    """Whether each packed query of a warpgroup, the first of which is ``origin``, sees every key of a tile."""
    whole = (tile + 1) * KV_TILE <= lax.div(origin, walk.group) + 1
    if walk.window is not None:
        last = lax.div(origin + (WARPGROUP_ROWS - 1), walk.group)
        whole &= tile * KV_TILE > last - walk.window
    return whole


def _seen(walk: Walk, origin: Scalar, tile: Scalar) -> Any:
    """Return which keys of a tile each packed query sees.

    Query i of a warpgroup is query head (origin + i) % group at position (origin + i) // group. key <= x // group
    equals key * group <= x, so nothing is divided.
    """
    shape, layout = (WARPGROUP_ROWS, KV_TILE), walk.layout
    query = plgpu.broadcasted_iota(jnp.int32, shape, 0, layout=layout)
    key = plgpu.broadcasted_iota(jnp.int32, shape, 1, layout=layout)
    ahead = query - key * walk.group
    least = tile * (KV_TILE * walk.group) - origin
    seen = ahead >= least
    if walk.window is not None:
        seen &= ahead < least + walk.window * walk.group
    return seen


def ends_within(item: WorkItem, tile: Scalar) -> Scalar:
    """Whether a context ends before its last tile does."""
    return (tile + 1) * KV_TILE > item.context


def hide_rest(walk: Walk, item: WorkItem, tile: Scalar, values: Ref) -> None:
    """Zero a tile's values past the context, in shared memory: a weight of 0 would not hide an infinity or a NaN, which
    an earlier owner of the block may have left there."""
    token = plgpu.broadcasted_iota(jnp.int32, values.shape, 0, layout=walk.layout)
    loaded = plgpu.load(values, layout=walk.layout, optimized=False)
    put(values, jnp.where(token < item.context - tile * KV_TILE, loaded, jnp.zeros_like(loaded)))


def _nothing(walk: Walk) -> Part:
    """Return the part of no keys."""
    shape, rows = (WARPGROUP_ROWS, walk.slice_dim), walk.layout.reduce(1)
    return Part(
        plgpu.layout_cast(jnp.full(shape[:1], FLOOR, jnp.float32), rows),
        plgpu.layout_cast(jnp.zeros(shape[:1], jnp.float32), rows),
        plgpu.layout_cast(jnp.zeros(shape, jnp.float32), walk.layout),
    )


def _beginning(walk: Walk, refs: dict[str, Ref], rows: Scalar, item: WorkItem) -> Part:
    """Return the part of no keys, or of each query head's sink."""
    nothing = _nothing(walk)
    if "sinks" not in refs:
        return nothing
    first = pl.multiple_of(item.granule * GRANULE + rows * WARPGROUP_ROWS, GRANULE)
    source = refs["sinks"].at[item.head, pl.ds(first, WARPGROUP_ROWS)]
    sinks = plgpu.load(source, layout=walk.layout.reduce(1), optimized=False)
    return sink(sinks, nothing.output)
