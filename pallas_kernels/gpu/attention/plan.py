"""Make the plan of attention in one kernel.

Each thread block goes over all rows of the batch, since a row's place follows those before it, and writes what belongs
to some of the rows. All is arithmetic of single integers.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Int

from pallas_kernels.gpu.attention.items import (
    GRANULE,
    KV_TILE,
    PIECE_TILES,
    PIECE_TOKENS,
    WARPGROUP_ROWS,
    AttentionPlan,
    Pieces,
    WorkItems,
    make_batch,
    make_packing,
    max_tiles,
    num_granules,
    piece_capacity,
)
from pallas_kernels.gpu.persistent import CTA, Interpret, Ref, repeat

NUM_CTAS = 32
"""Each writes at most 8 of 256 rows, and all go over the rows at once."""
Scalar = Any


class _Row(NamedTuple):
    """A row, with the items and granules before it."""

    number: Scalar
    start: Scalar
    length: Scalar
    context: Scalar
    pieces: Scalar
    tiles: Scalar
    granules: Scalar


def plan_in_kernel(
    query_starts: Int[Array, "R1"],
    context_lens: Int[Array, "R"],
    num_rows: Int[Array, ""],
    num_decodes: Int[Array, ""],
    *,
    T: int,
    group: int,
    num_blocks: int,
    block_size: int,
    window: int | None,
    tile_groups: int,
    num_ctas: int = NUM_CTAS,
    interpret: Interpret = None,
) -> AttentionPlan:
    """Return what ``items.make_plan`` does: items past the last and places of tokens without a row are undefined.

    The packing's other fields are made by XLA where they are read, as they are not if queries are packed by a kernel.
    """
    R, tile_rows = len(context_lens), tile_groups * WARPGROUP_ROWS
    capacity = piece_capacity(num_blocks, block_size, R)
    sizes = {
        "context": R,
        "place": T,
        "num_rows": 1,
        "begin": R,
        "end": R,
        **{f"piece_{name}": capacity for name in WorkItems._fields},
        **{f"tile_{name}": max_tiles(T, R, group, tile_rows) for name in WorkItems._fields},
        "piece_num_items": 1,
        "tile_num_items": 1,
    }
    # One array that XLA makes: it would pass slices of a larger array as offsets into it, which no kernel takes.
    batch = jnp.concatenate([query_starts, context_lens, jnp.stack([num_rows, num_decodes])]).astype(jnp.int32)
    names = ("batch", *sizes)

    def body(*refs: Ref) -> None:
        _cta(dict(zip(names, refs, strict=True)), num_ctas, group, window, tile_rows, capacity)

    out = plgpu.kernel(
        body,
        out_type=[jax.ShapeDtypeStruct((size,), jnp.int32) for size in sizes.values()],
        grid=(num_ctas,),
        grid_names=(CTA,),
        compiler_params=plgpu.CompilerParams(),
        interpret=interpret,
        kernel_name="plan_attention",
    )(batch)
    found: dict[str, Array] = dict(zip(sizes, out, strict=True))
    of_pieces, tiles = (
        WorkItems(*(found[f"{kind}_{name}"] for name in WorkItems._fields)) for kind in ("piece", "tile")
    )
    pieces = Pieces(of_pieces, found["num_rows"], found["begin"], found["end"])
    rows = make_batch(query_starts, context_lens, num_rows, group)
    packing = make_packing(rows, pieces, T, group, num_granules(T, R, group, tile_rows))
    return AttentionPlan(found["context"], pieces, tiles, packing._replace(place=found["place"]), tile_groups, group)


def _cta(refs: dict[str, Ref], num_ctas: int, group: int, window: int | None, tile_rows: int, capacity: int) -> None:
    cta, batch, R = lax.axis_index(CTA), refs["batch"], refs["context"].shape[0]
    num_rows, num_decodes = batch[2 * R + 1], batch[2 * R + 2]

    def one(number: Scalar, before: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
        start, pieces, tiles, granules, listed, split = before
        end, context = batch[number + 1], batch[R + 1 + number]
        row = _Row(number, start, end - start, context, pieces, tiles, granules)
        queries, first = row.length * group, _first_seen(context - 1, window) // PIECE_TILES
        more = jnp.where(number < num_decodes, (context - 1) // PIECE_TOKENS + 1 - first, 0)
        in_pieces = (number < num_decodes) & (pieces + more <= capacity)
        of_tiles = jnp.where(in_pieces, 0, (queries + tile_rows - 1) // tile_rows)

        @pl.when(number % num_ctas == cta)
        def _() -> None:
            _put(refs, number, {"context": context, "begin": pieces, "end": pieces + more})
            repeat(0, jnp.where(in_pieces, more, 0), partial(_piece, refs, row, first, group, window))
            repeat(0, of_tiles, partial(_tile, refs, row, group, window, tile_rows))
            repeat(0, row.length, lambda i: _put(refs, start + i, {"place": granules * GRANULE + i * group}))

        granules += (queries + GRANULE - 1) // GRANULE
        listed = jnp.where(in_pieces, pieces + more, listed)
        return end, pieces + more, tiles + of_tiles, granules, listed, split + in_pieces.astype(jnp.int32)

    zero = jnp.int32(0)
    beginning = batch[0], *[zero] * 5
    _, _, tiles, _, listed, split = lax.fori_loop(zero, num_rows, one, beginning)
    rows, all_rows = (_rows_of_cta(count, cta, num_ctas) for count in (num_rows, R))
    repeat(rows, all_rows, lambda i: _put(refs, i * num_ctas + cta, {"context": zero}))

    totals = {"piece_num_items": listed, "tile_num_items": tiles, "num_rows": split}
    pl.when(cta == 0)(lambda: _put(refs, 0, totals))


def _rows_of_cta(count: Scalar, cta: Scalar, num_ctas: int) -> Scalar:
    """Return how many of the first ``count`` rows are this thread block's."""
    return (jnp.maximum(count - cta, 0) + num_ctas - 1) // num_ctas


def _piece(refs: dict[str, Ref], row: _Row, first: Scalar, group: int, window: int | None, i: Scalar) -> None:
    """Write item number ``i`` of a decode, whose first piece is ``first``."""
    position, piece = row.context - 1, first + i
    begin = jnp.maximum(piece * PIECE_TILES, _first_seen(position, window))
    end = jnp.minimum((piece + 1) * PIECE_TILES, position // KV_TILE + 1)
    place = {"granule": row.granules, "first": row.start * group, "queries": jnp.int32(group)}
    item = {"row": row.number, **place, "origin": position * group, "begin": begin, "end": end}
    _put(refs, row.pieces + i, {f"piece_{name}": value for name, value in item.items()})


def _tile(refs: dict[str, Ref], row: _Row, group: int, window: int | None, tile_rows: int, i: Scalar) -> None:
    """Write item number ``i`` of a row that is walked in tiles."""
    queries, offset, start = row.length * group, i * tile_rows, row.context - row.length
    last = start + (jnp.minimum(offset + tile_rows, queries) - 1) // group
    place = {"granule": row.granules + offset // GRANULE, "first": row.start * group + offset}
    place["queries"] = queries - offset
    seen = {"begin": _first_seen(start + offset // group, window), "end": last // KV_TILE + 1}
    item = {"row": row.number, **place, "origin": start * group + offset, **seen}
    _put(refs, row.tiles + i, {f"tile_{name}": value for name, value in item.items()})


def _first_seen(position: Scalar, window: int | None) -> Scalar:
    """Return the KV tile of the first token that a query sees."""
    return jnp.zeros_like(position) if window is None else jnp.maximum(position - window + 1, 0) // KV_TILE


def _put(refs: dict[str, Ref], index: Scalar, values: dict[str, Scalar]) -> None:
    for name, value in values.items():
        refs[name][index] = value
