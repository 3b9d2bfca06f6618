"""Attention of a ragged batch of query tokens over a blocked KV cache.

A step's tokens are laid end to end; row r owns ``query_starts[r] : query_starts[r + 1]`` of them, the last tokens of a
context of ``context_lens[r]`` whose blocks ``block_tables[r]`` lists in order. Rows of one token come first.

The walk over a context is split in pieces of a fixed number of tokens, folded from the left with the online softmax
(Milakov and Gimelshein, arXiv 1805.02867), so a token's result depends on its own context alone: a masked piece leaves
the running maximum, sum and output as they were, to the bit.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

PIECE_TOKENS = 64
"""Context tokens folded at a time (or one block, where blocks are larger)."""
ROW_GROUP = 8
"""Rows of one token that are walked together."""
QUERY_TILE = 64
"""Query tokens of one prompt chunk that are walked together."""

_MASKED = -1e30
_FLOOR = -1e20
"""Where running maxima start: far above ``_MASKED``, so that exp(_MASKED - maximum) is exactly 0."""


class _Running(NamedTuple):
    """Online softmax of queries [b, K, M]: maximum, sum of exponentials, weighted sum of values."""

    maximum: Float[Array, "b K M"]
    total: Float[Array, "b K M"]
    output: Float[Array, "b K M D"]

    @classmethod
    def start(cls, b: int, K: int, M: int, D: int) -> "_Running":
        return cls(jnp.full((b, K, M), _FLOOR), jnp.zeros((b, K, M)), jnp.zeros((b, K, M, D)))

    def fold(self, scores: Float[Array, "b K M P"], values: Float[Array, "b K P D"]) -> "_Running":
        maximum = jnp.maximum(self.maximum, scores.max(-1))
        shrink = jnp.exp(self.maximum - maximum)
        weights = jnp.exp(scores - maximum[..., None])
        weighted = lax.dot_general(
            weights.astype(values.dtype),
            values,
            (((3,), (2,)), ((0, 1), (0, 1))),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
        return _Running(maximum, self.total * shrink + weights.sum(-1), self.output * shrink[..., None] + weighted)

    def result(self) -> Float[Array, "b K M D"]:
        return self.output / jnp.where(self.total > 0, self.total, 1.0)[..., None]


class _Context(NamedTuple):
    """The cache of one layer as attention walks it, a piece at a time."""

    cache: Float[Array, "N L 2 K B D"]
    layer: Int[Array, ""]
    piece_tokens: int
    scale: float
    window: int | None

    def piece(
        self, table: Int[Array, "b n"], piece: Int[Array, ""], context_lens: Int[Array, "b"]
    ) -> tuple[Float[Array, "b K P D"], Float[Array, "b K P D"]]:
        """K and V of one piece; blocks wholly past a row's context are read as zeros."""
        N, _, _, K, B, D = self.cache.shape
        b, n = table.shape
        first_token = (piece * n + jnp.arange(n)) * B
        ids = jnp.where(first_token < context_lens[:, None], table, N)
        kv = self.cache.at[ids, self.layer].get(mode="fill", fill_value=0)
        k, v = (kv[:, :, i].swapaxes(1, 2).reshape(b, K, n * B, D) for i in range(2))
        return k, v

    def scores(
        self,
        q: Float[Array, "b K M D"],
        k: Float[Array, "b K P D"],
        piece: Int[Array, ""],
        query_positions: Int[Array, "b M"],
    ) -> Float[Array, "b K M P"]:
        """Scaled scores; positions after the query or out of its window are masked."""
        scores = lax.dot_general(
            q,
            k,
            (((3,), (3,)), ((0, 1), (0, 1))),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
        key_positions = piece * self.piece_tokens + jnp.arange(self.piece_tokens)
        seen = key_positions <= query_positions[..., None]
        if self.window is not None:
            seen &= key_positions > query_positions[..., None] - self.window
        return jnp.where(seen[:, None], scores * self.scale, _MASKED)

    def pieces(self, first_query: Int[Array, ""], context_len: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """The range of pieces that any query from ``first_query`` on attends to."""
        end = (context_len + self.piece_tokens - 1) // self.piece_tokens
        if self.window is None:
            return jnp.zeros_like(end), end
        return jnp.maximum(first_query - self.window + 1, 0) // self.piece_tokens, end


def ragged_paged_attention_ref(
    q: Float[Array, "T H D"],
    cache: Float[Array, "N L 2 K B D"],
    layer: Int[Array, ""],
    block_tables: Int[Array, "R M"],
    query_starts: Int[Array, "R1"],
    context_lens: Int[Array, "R"],
    num_rows: Int[Array, ""],
    num_decodes: Int[Array, ""],
    *,
    scale: float,
    window: int | None = None,
) -> Float[Array, "T H D"]:
    """Causal attention of every query token over its row's context in ``layer``; float32 inside, q's dtype out.

    Rows ``[0, num_decodes)`` have one query token each, rows ``[num_decodes, num_rows)`` any number; row r's last query
    token is at position ``context_lens[r] - 1``. H is a multiple of K (grouped-query attention). ``window``: a token
    attends to itself and the ``window - 1`` tokens before it. Outputs of tokens past ``query_starts[num_rows]`` are
    undefined but finite. Table entries past a row's context are not read; cache slots past a context inside a used
    block must be finite. R1 = R + 1; T >= R.

    Work grows with the contexts in use, not with M: about 4 * D * H FLOPs per (query, context token) pair.
    """
    B = cache.shape[4]
    blocks = max(1, PIECE_TOKENS // B)
    context = _Context(cache, layer, blocks * B, scale, window)
    rows = -(-block_tables.shape[0] // ROW_GROUP) * ROW_GROUP
    tables = _pad(block_tables, rows, -(-block_tables.shape[1] // blocks) * blocks)
    T, H, D = q.shape
    q = _pad(q, max(T, rows) + QUERY_TILE, H, D)
    out = _attend_decodes(context, q, tables, _pad(context_lens, rows), num_decodes)
    out = _attend_prompts(context, q, tables, query_starts, context_lens, num_rows, num_decodes, out)
    return out[:T]


def _pad(x: Array, *shape: int) -> Array:
    return jnp.pad(x, [(0, new - old) for new, old in zip(shape, x.shape, strict=True)])


def _attend_decodes(
    context: _Context,
    q: Float[Array, "Tp H D"],
    tables: Int[Array, "Rp Mp"],
    context_lens: Int[Array, "Rp"],
    num_decodes: Int[Array, ""],
) -> Float[Array, "Tp H D"]:
    """Rows of one token, ROW_GROUP at a time: row r's token is token r."""
    _, H, D = q.shape
    K = context.cache.shape[3]
    n = context.piece_tokens // context.cache.shape[4]

    def group(g: Int[Array, ""], out: Float[Array, "Tp H D"]) -> Float[Array, "Tp H D"]:
        first = g * ROW_GROUP
        live = first + jnp.arange(ROW_GROUP) < num_decodes
        lens = jnp.where(live, lax.dynamic_slice_in_dim(context_lens, first, ROW_GROUP), 0)
        queries = lax.dynamic_slice_in_dim(q, first, ROW_GROUP).reshape(ROW_GROUP, K, H // K, D)
        positions = jnp.broadcast_to(lens[:, None] - 1, (ROW_GROUP, H // K))

        def piece(p: Int[Array, ""], running: _Running) -> _Running:
            table = lax.dynamic_slice(tables, (first, p * n), (ROW_GROUP, n))
            k, v = context.piece(table, p, lens)
            return running.fold(context.scores(queries, k, p, positions), v)

        shortest = jnp.where(live, lens, lens.max()).min()
        start, end = context.pieces(shortest - 1, lens.max())
        running = lax.fori_loop(start, end, piece, _Running.start(ROW_GROUP, K, H // K, D))
        result = running.result().reshape(ROW_GROUP, H, D).astype(q.dtype)
        return lax.dynamic_update_slice_in_dim(out, result, first, axis=0)

    groups = (num_decodes + ROW_GROUP - 1) // ROW_GROUP
    return lax.fori_loop(0, groups, group, jnp.zeros_like(q))


def _attend_prompts(
    context: _Context,
    q: Float[Array, "Tp H D"],
    tables: Int[Array, "Rp Mp"],
    query_starts: Int[Array, "R1"],
    context_lens: Int[Array, "R"],
    num_rows: Int[Array, ""],
    num_decodes: Int[Array, ""],
    out: Float[Array, "Tp H D"],
) -> Float[Array, "Tp H D"]:
    """Rows of several tokens, a tile of QUERY_TILE tokens at a time.

    Rows ascend, so what a row's last tile writes past the row is overwritten by the rows that own those tokens.
    """
    _, H, D = q.shape
    K = context.cache.shape[3]
    n = context.piece_tokens // context.cache.shape[4]

    def row(r: Int[Array, ""], out: Float[Array, "Tp H D"]) -> Float[Array, "Tp H D"]:
        start, length = query_starts[r], query_starts[r + 1] - query_starts[r]
        first_position = context_lens[r] - length

        def tile(t: Int[Array, ""], out: Float[Array, "Tp H D"]) -> Float[Array, "Tp H D"]:
            position = first_position + t * QUERY_TILE
            context_len = jnp.minimum(position + QUERY_TILE, context_lens[r])
            queries = lax.dynamic_slice_in_dim(q, start + t * QUERY_TILE, QUERY_TILE)
            queries = queries.reshape(QUERY_TILE, K, H // K, D).swapaxes(0, 1).reshape(1, K, -1, D)
            positions = jnp.repeat(position + jnp.arange(QUERY_TILE), H // K)[None]

            def piece(p: Int[Array, ""], running: _Running) -> _Running:
                table = lax.dynamic_slice(tables, (r, p * n), (1, n))
                k, v = context.piece(table, p, context_len[None])
                return running.fold(context.scores(queries, k, p, positions), v)

            first_piece, end_piece = context.pieces(position, context_len)
            running = lax.fori_loop(first_piece, end_piece, piece, _Running.start(1, K, queries.shape[2], D))
            result = running.result().reshape(K, QUERY_TILE, H // K, D).swapaxes(0, 1).reshape(QUERY_TILE, H, D)
            return lax.dynamic_update_slice_in_dim(out, result.astype(q.dtype), start + t * QUERY_TILE, axis=0)

        return lax.fori_loop(0, (length + QUERY_TILE - 1) // QUERY_TILE, tile, out)

    return lax.fori_loop(num_decodes, num_rows, row, out)
