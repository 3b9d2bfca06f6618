"""Attention of a ragged batch of query tokens over a blocked KV cache.

A step's tokens are laid end to end; row r owns ``query_starts[r] : query_starts[r + 1]`` of them, the last tokens of a
context of ``context_lens[r]`` whose blocks ``block_tables[r]`` lists in order. Rows of one token come first.

A token's output depends bit for bit on its own query and context alone, because there is one way to compute it:

- Rows are cut in tiles of QUERY_TILE tokens, and a row of one token fills a tile as well as it can. XLA chooses the
  code of a product by its shape, and each code adds up in another order. So one token and many must be the same
  product.
- The walk over a context is split in pieces of a fixed number of tokens, which begin at the same tokens for everyone.
  Pieces are folded from the left with the online softmax (Milakov and Gimelshein, arXiv 1805.02867). A piece of which a
  token sees nothing leaves its maximum, sum and output as they were.

All pieces of all tiles are folded in one loop. At each of its turns a GPU's host waits to see whether there is another,
so a nest of loops of small turns would be slow. How many tiles and tokens a turn takes is the caller's choice.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Num

from pallas_kernels.kv_codes import decode

PIECE_TOKENS = 64
"""Context tokens folded at a time (or one block, where blocks are larger)."""
QUERY_TILE = 4
"""Query tokens of one row that are walked together.

With more of them, more work is wasted on a row of one token. With fewer, a long chunk reads its context more often.
"""
TILE_GROUP = 8
"""Tiles, of any rows, that are walked together."""
GPU_PIECE_TOKENS, GPU_TILE_GROUP = 512, 64
"""The same for GPUs: a turn gathers some 100 MiB of keys and values, which takes longer than to start it."""

_MASKED = -1e30
_FLOOR = -1e20
"""Where running maxima start: far above ``_MASKED``, so that exp(_MASKED - maximum) is exactly 0."""


class _Tiles(NamedTuple):
    """n tiles, each of up to QUERY_TILE tokens of a row."""

    row: Int[Array, "n"]
    first_token: Int[Array, "n"]
    first_position: Int[Array, "n"]
    context_len: Int[Array, "n"]
    """Tokens that the tile's last token attends to; 0 where there is no tile."""

    def slice(self, start: Int[Array, ""], count: int) -> "_Tiles":
        return _Tiles(*(lax.dynamic_slice_in_dim(x, start, count) for x in self))

    def in_groups(self, count: int) -> "_Tiles":
        """Return the fields as arrays [n // count, count]."""
        return _Tiles(*(x.reshape(-1, count) for x in self))


def _cut(
    query_starts: Int[Array, "R1"], context_lens: Int[Array, "R"], num_rows: Int[Array, ""], T: int, together: int
) -> tuple[_Tiles, Int[Array, "T"]]:
    """Return the rows in tiles, in order and padded to whole groups of ``together``, and each token's place.

    A place is tile * QUERY_TILE + offset; it is arbitrary for a token without a row.
    """
    R = len(context_lens)
    starts = query_starts[:-1]
    lengths = jnp.where(jnp.arange(R) < num_rows, query_starts[1:] - starts, 0)
    counts = (lengths + QUERY_TILE - 1) // QUERY_TILE
    ends = jnp.cumsum(counts)
    most = (T + R * (QUERY_TILE - 1)) // QUERY_TILE
    index = jnp.arange(-(-most // together) * together)
    row = _owner(ends, index)
    offset = (index - (ends - counts)[row]) * QUERY_TILE
    position = context_lens[row] - lengths[row] + offset
    context_len = jnp.minimum(position + QUERY_TILE, context_lens[row])
    tiles = _Tiles(row, starts[row] + offset, position, jnp.where(index < ends[-1], context_len, 0))
    owner = _owner(starts + lengths, jnp.arange(T))
    places = (ends - counts)[owner] * QUERY_TILE + jnp.arange(T) - starts[owner]
    return tiles, places


def _owner(ends: Int[Array, "R"], index: Int[Array, "n"]) -> Int[Array, "n"]:
    """The row of each item, where row r owns those from ``ends[r - 1]`` to ``ends[r]``; past all ends the last row."""
    return jnp.minimum(jnp.searchsorted(ends, index, side="right", method="compare_all"), len(ends) - 1)


def _product(
    left: Float[Array, "b K M C"], right: Float[Array, "b K X Y"], *, contract: int
) -> Float[Array, "b K M Z"]:
    """Sums over the last axis of ``left`` and axis ``contract`` of ``right``, in float32."""
    return lax.dot_general(
        left,
        right,
        (((3,), (contract,)), ((0, 1), (0, 1))),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


class _Running(NamedTuple):
    """Online softmax of queries [b, K, M]: maximum, sum of exponentials, weighted sum of values."""

    maximum: Float[Array, "b K M"]
    total: Float[Array, "b K M"]
    output: Float[Array, "b K M V"]

    @classmethod
    def start(cls, b: int, K: int, M: int, V: int) -> "_Running":
        return cls(jnp.full((b, K, M), _FLOOR), jnp.zeros((b, K, M)), jnp.zeros((b, K, M, V)))

    def with_sinks(self, sinks: Float[Array, "H"]) -> "_Running":
        """Return the part as if each query head had seen a key of that score and no value."""
        b, K, M = self.maximum.shape
        group = len(sinks) // K
        maximum = jnp.tile(sinks.astype(jnp.float32).reshape(K, group), (b, 1, M // group))
        return _Running(maximum.reshape(b, K, M), jnp.ones((b, K, M)), self.output)

    def fold(self, scores: Float[Array, "b K M P"], values: Float[Array, "b K P V"]) -> "_Running":
        maximum = jnp.maximum(self.maximum, scores.max(-1))
        shrink = jnp.exp(self.maximum - maximum)
        weights = jnp.exp(scores - maximum[..., None])
        weighted = _product(weights.astype(values.dtype), values, contract=2)
        return _Running(maximum, self.total * shrink + weights.sum(-1), self.output * shrink[..., None] + weighted)

    def slice(self, start: Int[Array, ""], count: int) -> "_Running":
        return _Running(*(lax.dynamic_slice_in_dim(x, start, count) for x in self))

    def update(self, start: Int[Array, ""], part: "_Running") -> "_Running":
        """Return the state with ``part`` at ``start``."""
        return _Running(
            *(lax.dynamic_update_slice_in_dim(x, y, start, axis=0) for x, y in zip(self, part, strict=True))
        )

    def result(self) -> Float[Array, "b K M V"]:
        return self.output / jnp.where(self.total > 0, self.total, 1.0)[..., None]


class _Context(NamedTuple):
    """The cache of one layer as attention walks it, a piece at a time."""

    cache: Num[Array, "N L P K B W"]
    layer: Int[Array, ""]
    tables: Int[Array, "R Mp"]
    blocks_per_piece: int
    value_dim: int
    scale: float
    window: int | Int[Array, ""] | None
    soft_cap: float | None
    sinks: Float[Array, "H"] | None

    @property
    def piece_tokens(self) -> int:
        return self.blocks_per_piece * self.cache.shape[4]

    def fold(self, running: _Running, piece: Int[Array, ""], tiles: _Tiles, q: Float[Array, "b K M D"]) -> _Running:
        """Fold one piece of the walk of ``tiles``, whose queries are ``q``: a tile's tokens one after another."""
        offsets = jnp.repeat(jnp.arange(QUERY_TILE), q.shape[2] // QUERY_TILE)
        positions = (tiles.first_position[:, None] + offsets)[..., None]
        key_positions = piece * self.piece_tokens + jnp.arange(self.piece_tokens)
        # Past the context lies what others left there, and a weight of 0 would not hide an infinity or a NaN.
        known = key_positions < tiles.context_len[:, None]
        seen = known[:, None] & (key_positions <= positions)
        if self.window is not None:
            seen &= key_positions > positions - self.window
        keys = self._read(tiles.row, piece, 0, q.dtype)
        values = keys if self.cache.shape[2] == 1 else self._read(tiles.row, piece, 1, q.dtype)
        scores = _product(q, keys, contract=3) * self.scale
        if self.soft_cap is not None:
            scores = self.soft_cap * jnp.tanh(scores / self.soft_cap)
        values = jnp.where(known[:, None, :, None], values[..., : self.value_dim], 0)
        return running.fold(jnp.where(seen[:, None], scores, _MASKED), values)

    def start(self, q: Float[Array, "b K M D"]) -> _Running:
        """Before the first piece."""
        b, K, M, _ = q.shape
        running = _Running.start(b, K, M, self.value_dim)
        return running if self.sinks is None else running.with_sinks(self.sinks)

    def pieces(self, groups: _Tiles) -> tuple[Int[Array, "n"], Int[Array, "n"]]:
        """The range of pieces of which any token of each group of tiles sees something."""
        end = (groups.context_len.max(axis=1) + self.piece_tokens - 1) // self.piece_tokens
        if self.window is None:
            return jnp.zeros_like(end), end
        past = end[:, None] * self.piece_tokens
        first = jnp.where(groups.context_len > 0, groups.first_position, past).min(axis=1)
        return jnp.maximum(first - self.window + 1, 0) // self.piece_tokens, end

    def _read(
        self, rows: Int[Array, "b"], piece: Int[Array, ""], which: int, dtype: DTypeLike
    ) -> Float[Array, "b K P D"]:
        """Keys (0) or values (1) of one piece of each row, in ``dtype``; past the row's context anything at all."""
        n = self.blocks_per_piece
        ids = lax.dynamic_slice_in_dim(self.tables, piece * n, n, axis=1)[rows]
        blocks = self.cache.at[ids, self.layer, which].get(mode="clip")
        b, _, K, B, W = blocks.shape
        return decode(blocks.swapaxes(1, 2).reshape(b, K, n * B, W), dtype)


def ragged_paged_attention_ref(
    q: Float[Array, "T H D"],
    cache: Num[Array, "N L P K B W"],
    layer: Int[Array, ""],
    block_tables: Int[Array, "R M"],
    query_starts: Int[Array, "R1"],
    context_lens: Int[Array, "R"],
    num_rows: Int[Array, ""],
    num_decodes: Int[Array, ""],
    *,
    scale: float,
    window: int | Int[Array, ""] | None = None,
    soft_cap: float | None = None,
    sinks: Float[Array, "H"] | None = None,
    value_dim: int | None = None,
    piece_tokens: int = PIECE_TOKENS,
    tile_group: int = TILE_GROUP,
) -> Float[Array, "T H V"]:
    """Causal attention of every query token over its row's context in ``layer``; float32 inside, q's dtype out.

    Rows ``[0, num_decodes)`` have one query token each, rows ``[num_decodes, num_rows)`` any number; row r's last query
    token is at position ``context_lens[r] - 1``. H is a multiple of K (grouped-query attention). ``window``: a token
    attends to itself and the ``window - 1`` tokens before it, as far as there are any. ``soft_cap``: a score s becomes
    soft_cap * tanh(s / soft_cap), as in Gemma 2. ``sinks``: for each query head one score more in the softmax's
    denominator, as in gpt-oss. ``value_dim``: of a cache of one part, P = 1, where a token's values are the first V =
    ``value_dim`` numbers of its keys, as in DeepSeek-V2; V = D where there are two parts. The cache has q's dtype and W
    = D, or codes (pallas_kernels.kv_codes), which are read as numbers of q's dtype. ``piece_tokens`` and
    ``tile_group``: how much is computed at a time. Outputs of tokens past ``query_starts[num_rows]`` are undefined.
    Table entries and cache slots past a row's context have no effect. R1 = R + 1; T >= R.

    Work grows with the contexts in use, not with M: about 2 * (D + V) * H FLOPs per context token and query. Queries
    count in whole tiles of a row.
    """
    del num_decodes  # a row of one token is a row
    T, H, D = q.shape
    K, B = cache.shape[3:5]
    n = max(1, piece_tokens // B)
    tables = jnp.pad(block_tables, ((0, 0), (0, -block_tables.shape[1] % n)))
    V = D if value_dim is None else value_dim
    context = _Context(cache, layer, tables, n, V, scale, window, soft_cap, sinks)
    tiles, places = _cut(query_starts, context_lens, num_rows, T, tile_group)
    tokens = tiles.first_token[:, None] + jnp.arange(QUERY_TILE)
    queries = q.at[tokens].get(mode="clip").reshape(-1, QUERY_TILE, K, H // K, D)
    queries = queries.swapaxes(1, 2).reshape(-1, K, QUERY_TILE * H // K, D)
    out = _walk(context, tiles, queries, tile_group).reshape(-1, K, QUERY_TILE, H // K, V)
    return out.swapaxes(1, 2).reshape(-1, H, V).at[places].get(mode="clip")


def _walk(context: _Context, tiles: _Tiles, queries: Float[Array, "n K M D"], together: int) -> Float[Array, "n K M V"]:
    """Attention of the tiles, ``together`` at a time; of padding, of no keys."""
    begin, end = context.pieces(tiles.in_groups(together))
    turns = jnp.maximum(end - begin, 0)
    ends = jnp.cumsum(turns)

    def turn(i: Int[Array, ""], running: _Running) -> _Running:
        group = jnp.searchsorted(ends, i, side="right", method="compare_all")
        piece, first = begin[group] + i - (ends - turns)[group], group * together
        here, q = tiles.slice(first, together), lax.dynamic_slice_in_dim(queries, first, together)
        return running.update(first, context.fold(running.slice(first, together), piece, here, q))

    # Not before the queries are there: XLA would keep the beginnings of all layers' loops at once.
    running, queries = lax.optimization_barrier((context.start(queries), queries))
    return lax.fori_loop(0, ends[-1], turn, running).result().astype(queries.dtype)
