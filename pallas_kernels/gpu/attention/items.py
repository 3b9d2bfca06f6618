"""Divide attention into items: a step's query tokens in tiles, their contexts in pieces, made from the rows.

Queries are packed for each kv head: the H // K query heads of a row's first token, of its second, and so on. Each row
begins at a multiple of GRANULE packed rows. So a tile is one copy, and a row's outputs are whole granules.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax.numpy as jnp
from jax.tree_util import register_dataclass
from jaxtyping import Array, Bool, Float, Int

GRANULE = 8
"""Packed rows that are copied together: rows of a tile in swizzled shared memory."""
WARPGROUP_ROWS = 64
"""Packed rows of a warpgroup: those of a wgmma."""
MOST_GROUPS = 2
"""Warpgroups that may share the keys and values that a tile of queries walks."""
MOST_VALUES = 128
"""Of a head, in a warpgroup's output."""
KV_TILE = 64
"""Context tokens of a walk's step."""
PIECE_TILES = 8
"""KV tiles of a piece. Pieces begin at the same tokens for everyone."""
PIECE_TOKENS = PIECE_TILES * KV_TILE


class RaggedBatch(NamedTuple):
    """A ragged batch of R rows, those past ``num_rows`` of length and context 0."""

    lengths: Int[Array, "R"]
    starts: Int[Array, "R"]
    context_lens: Int[Array, "R"]
    granules: Int[Array, "R"]
    """How many hold the row's packed queries."""
    first_granules: Int[Array, "R"]


class WorkItems(NamedTuple):
    """Work on n tiles of packed queries, for each of the kv heads, in the order in which it is done."""

    num_items: Int[Array, "1"]
    """Items past it mean nothing."""
    row: Int[Array, "n"]
    granule: Int[Array, "n"]
    """The tile's first."""
    first: Int[Array, "n"]
    """The tile's first query in the step: token * group + query head."""
    queries: Int[Array, "n"]
    """How many are the row's from there; may be more than the tile holds."""
    origin: Int[Array, "n"]
    """Position * group + query head of the tile's first packed row."""
    begin: Int[Array, "n"]
    end: Int[Array, "n"]
    """The KV tiles of which any query of the item sees something."""


class Pieces(NamedTuple):
    """The items of the rows whose contexts are walked in pieces by many CTAs, then combined."""

    items: WorkItems
    num_rows: Int[Array, "1"]
    """These are the rows from 0 to ``num_rows``."""
    begin: Int[Array, "R"]
    end: Int[Array, "R"]
    """Each row's items."""


class Packing(NamedTuple):
    """Sources of the packed queries, and places of the outputs of T tokens."""

    token: Int[Array, "P"]
    query_head: Int[Array, "P"]
    """Within a group."""
    row: Int[Array, "T"]
    """The token's, if that is walked in pieces, else -1."""
    place: Int[Array, "T"]
    """The token's first packed query."""
    known: Bool[Array, "T"]
    """Whether the token is a row's."""


class PackedQueries(NamedTuple):
    """Queries in the packed order of a plan; rows of no query hold anything."""

    rows: Float[Array, "K P D"]


@register_dataclass
@dataclass(frozen=True)
class AttentionPlan:
    """All that attention needs to know of a step's rows, except their block tables.

    It is the same in every layer with the same window.
    """

    context_lens: Int[Array, "R"]
    """0 for rows past the last. An array of the plan's own: kernels need operands aligned to 256 bytes, and XLA passes
    a slice of a larger array as an offset into it."""
    pieces: Pieces
    tiles: WorkItems
    packing: Packing
    tile_groups: int = field(metadata={"static": True})
    """Warpgroups of WARPGROUP_ROWS packed queries in a tile."""
    group: int = field(metadata={"static": True})
    """Query heads of a kv head."""


def make_plan(
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
) -> AttentionPlan:
    """Return the plan of a step of T tokens, with a cache of ``num_blocks`` blocks."""
    R, tile_rows = len(context_lens), tile_groups * WARPGROUP_ROWS
    batch = make_batch(query_starts, context_lens, num_rows, group)
    pieces = make_pieces(batch, num_decodes, group, window, piece_capacity(num_blocks, block_size, R))
    tiles = make_tiles(batch, pieces.num_rows[0], T, group, window, tile_rows)
    packing = make_packing(batch, pieces, T, group, num_granules(T, R, group, tile_rows))
    return AttentionPlan(batch.context_lens, pieces, tiles, packing, tile_groups, group)


def best_tile_groups(T: int, group: int, kv_heads: int, head_dim: int, num_ctas: int) -> int:
    """Return the warpgroups of a tile; no bit depends on them.

    One if the tiles of T tokens of one row are then no more than the CTAs, so all are walked at once. One, too, if a
    head's values occupy several warpgroups. Else as many as can share keys and values.
    """
    at_once = T * group * kv_heads <= WARPGROUP_ROWS * num_ctas
    return 1 if at_once or value_slices(head_dim) > 1 else MOST_GROUPS


def value_slices(head_dim: int) -> int:
    """Return the number of slices of a head's values, each of at most MOST_VALUES.

    Each slice has a warpgroup of its own for the same queries. The registers of a warpgroup hold the output of a piece
    and of the pieces before it.
    """
    return -(-head_dim // MOST_VALUES)


def make_batch(
    query_starts: Int[Array, "R1"], context_lens: Int[Array, "R"], num_rows: Int[Array, ""], group: int
) -> RaggedBatch:
    starts, real = query_starts[:-1], jnp.arange(len(context_lens)) < num_rows
    lengths = jnp.where(real, query_starts[1:] - starts, 0)
    context_lens = jnp.where(real, context_lens, 0)
    granules = (lengths * group + GRANULE - 1) // GRANULE
    return RaggedBatch(lengths, starts, context_lens, granules, jnp.cumsum(granules) - granules)


def piece_capacity(num_blocks: int, block_size: int, max_rows: int) -> int:
    """Return the most pieces of contexts that share no block, which bounds the pieces that a step keeps."""
    return num_blocks * block_size // PIECE_TOKENS + max_rows


def make_pieces(
    batch: RaggedBatch, num_decodes: Int[Array, ""], group: int, window: int | None, capacity: int
) -> Pieces:
    """Make one item for each piece that a decode sees. Decodes from the first whose pieces exceed ``capacity``
    (contexts that share many blocks) are left to ``make_tiles``, which gives the same bits."""
    R = len(batch.lengths)
    position = batch.context_lens - 1
    first = first_seen_tile(position, window) // PIECE_TILES
    decode = jnp.arange(R) < num_decodes
    counts = jnp.where(decode, position // PIECE_TOKENS + 1 - first, 0)
    ends = jnp.cumsum(counts)
    num_rows = jnp.sum(decode & (ends <= capacity))
    last = jnp.where(num_rows > 0, ends[jnp.maximum(num_rows - 1, 0)], 0)
    index = jnp.arange(capacity)
    row = owner(ends, index)
    piece = first[row] + index - (ends - counts)[row]
    at = position[row]
    begin = jnp.maximum(piece * PIECE_TILES, first_seen_tile(at, window))
    end = jnp.minimum((piece + 1) * PIECE_TILES, at // KV_TILE + 1)
    place = batch.first_granules[row], batch.starts[row] * group, jnp.full_like(row, group)
    items = WorkItems(last[None], row, *place, at * group, begin, end)
    return Pieces(items, num_rows[None], ends - counts, ends)


def max_tiles(T: int, R: int, group: int, tile_rows: int) -> int:
    """Return the most tiles of R rows that have T tokens together."""
    return (T * group + R * (tile_rows - 1)) // tile_rows


def make_tiles(
    batch: RaggedBatch, first_row: Int[Array, ""], T: int, group: int, window: int | None, tile_rows: int
) -> WorkItems:
    """Make one item for each tile of the rows from ``first_row``; it walks the whole context."""
    R = len(batch.lengths)
    packed = batch.lengths * group
    counts = jnp.where(jnp.arange(R) >= first_row, (packed + tile_rows - 1) // tile_rows, 0)
    ends = jnp.cumsum(counts)
    index = jnp.arange(max_tiles(T, R, group, tile_rows))
    row = owner(ends, index)
    offset = (index - (ends - counts)[row]) * tile_rows
    start = batch.context_lens[row] - batch.lengths[row]
    last = start + (jnp.minimum(offset + tile_rows, packed[row]) - 1) // group
    begin = first_seen_tile(start + offset // group, window)
    granule = offset // GRANULE
    place = batch.first_granules[row] + granule, batch.starts[row] * group + offset, packed[row] - offset
    return WorkItems(ends[-1:], row, *place, start * group + offset, begin, last // KV_TILE + 1)


def first_seen_tile(position: Int[Array, "n"], window: int | None) -> Int[Array, "n"]:
    """The KV tile of the first token that a query sees."""
    return jnp.zeros_like(position) if window is None else jnp.maximum(position - window + 1, 0) // KV_TILE


def owner(ends: Int[Array, "R"], index: Int[Array, "n"]) -> Int[Array, "n"]:
    """The row of each item, where row r owns those from ``ends[r - 1]`` to ``ends[r]``; past all ends the last row."""
    return jnp.minimum(jnp.searchsorted(ends, index, side="right", method="compare_all"), len(ends) - 1)


def num_granules(T: int, R: int, group: int, tile_rows: int) -> int:
    """Enough for every row's packed queries and a copy of a whole tile from the last."""
    return (T * group + R * (GRANULE - 1)) // GRANULE + tile_rows // GRANULE


def make_packing(batch: RaggedBatch, pieces: Pieces, T: int, group: int, granules: int) -> Packing:
    row = owner(batch.first_granules + batch.granules, jnp.arange(granules))
    index = (jnp.arange(granules) - batch.first_granules[row])[:, None] * GRANULE + jnp.arange(GRANULE)
    token = jnp.arange(T)
    token_row = owner(batch.starts + batch.lengths, token)
    return Packing(
        token=(batch.starts[row][:, None] + index // group).reshape(-1),
        query_head=(index % group).reshape(-1),
        row=jnp.where(token_row < pieces.num_rows, token_row, -1),
        place=batch.first_granules[token_row] * GRANULE + (token - batch.starts[token_row]) * group,
        known=token < (batch.starts + batch.lengths).max(),
    )


def pack(q: Float[Array, "T H D"], packing: Packing, kv_heads: int) -> Float[Array, "K P D"]:
    """The queries in packed order; rows of no query hold some other query."""
    T, H, D = q.shape
    heads = q.reshape(T, kv_heads, H // kv_heads, D)
    return heads.at[packing.token, :, packing.query_head].get(mode="clip").swapaxes(0, 1)


def unpack(
    tiles: Float[Array, "K P D"], combined: Float[Array, "R K rows D"], packing: Packing, group: int
) -> Float[Array, "T H D"]:
    """Each token's output: from ``combined``, which holds rows of one token, or from the packed ``tiles``; zeros for a
    token of no row."""
    K, _, D = tiles.shape
    T = len(packing.row)
    packed = tiles.at[:, packing.place[:, None] + jnp.arange(group)].get(mode="clip").swapaxes(0, 1)
    split = packing.row >= 0
    out = jnp.where(split[:, None, None, None], combined[jnp.maximum(packing.row, 0), :, :group], packed)
    return jnp.where(packing.known[:, None, None, None], out, 0).reshape(T, K * group, D)
