"""What a warpgroup of the Hopper kernel of gated delta nets computes of one head in one span of positions.

A span's 32 keys are rows 0 to 31 of a wgmma, its 32 queries the others, each at its own position. So a token has the
same place in the same products whether it comes alone or with others, and rows of zeros stand for those not there.
Float32 numbers are two of bfloat16 in a product: the nearest, and the nearest to what is left of it.
"""

from collections.abc import Callable

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.gated_delta import EPS
from pallas_kernels.gpu.delta_support import BLOCK, HEAD, SPAN, TILE
from pallas_kernels.gpu.delta_tiles import (
    BY_ROW,
    HALVES,
    PAD,
    Head,
    Memory,
    Piece,
    Tile,
    accumulated,
    by_column,
    half_of,
    is_computed,
    line,
    load_tile,
    load_whole,
    places,
    put_pair,
    row_numbers,
    spread,
    to_length,
)
from pallas_kernels.gpu.persistent import Ref, copy, put, repeat


def compute(memory: Memory, head: Head, piece: Piece, store: Callable[[Int[Array, ""], Array], None]) -> None:
    """Compute the tokens of a piece, and what the head keeps of them but their keys.

    ``store(token, numbers)`` takes what a token reads.
    """
    products = _keys_and_queries(memory, head, piece)
    _put_shares(memory, head, piece, _shares(memory, head, piece, products))
    _recall(memory, head, piece)
    _begin_changes(memory, head, piece)
    _solve(memory, piece)
    row, _ = places(TILE)
    _add_changes(memory, row >= SPAN)
    repeat(piece.used, piece.end, lambda i: store(piece.token + i, load_whole(memory.rows.at[SPAN + i])))
    _keep(memory, head, piece)


def _keys_and_queries(memory: Memory, head: Head, piece: Piece) -> Float[Array, "64 32"]:
    """Bring the span's keys and queries to ``units``, and return the products of both with the keys."""
    pl.when(piece.used > 0)(lambda: copy(head.keys, memory.rows.at[pl.ds(0, SPAN)]))
    row, _ = places(TILE)
    position = lax.rem(row, jnp.int32(SPAN))
    computed = (position >= piece.used) & (position < piece.end)
    is_kept = (row < SPAN) & (position < piece.used)
    square: list[Array] = []
    for half in HALVES:
        inputs = _inputs(head, piece, half, (1, 0))
        kept = jnp.where(is_kept, load_tile(memory.rows.at[:, half_of(half)]), 0.0)
        numbers = jnp.where(computed, inputs, kept)
        put(memory.units.at[half], numbers.astype(jnp.bfloat16))
        square.append(jnp.sum(numbers * numbers, axis=1))
    put(memory.lines.at[1], lax.rsqrt(sum(square[1:], square[0]) + EPS))
    plgpu.commit_smem()

    def multiply(acc: Ref) -> Float[Array, "64 32"]:
        for half in HALVES:
            units = memory.units.at[half]
            plgpu.wgmma(acc, units, units.at[pl.ds(0, SPAN)].transpose((1, 0)))
        return acc[...]

    return accumulated(multiply, SPAN)


def _shares(memory: Memory, head: Head, piece: Piece, products: Float[Array, "64 32"]) -> Float[Array, "64 32"]:
    """Return what each row takes of each change: products of what has length 1, times what is left of the change."""
    row, column = places(SPAN)
    position = lax.rem(row, jnp.int32(SPAN))
    new = by_column(head.decays.at[pl.ds(piece.token + PAD, SPAN)])
    decays = jnp.where(column < piece.used, by_column(head.kept), jnp.where(column < piece.end, new, 0.0))
    put(memory.lines.at[0], jnp.sum(jnp.where(column <= position, decays, 0.0), axis=1))
    plgpu.commit_smem()
    total, of_change = spread(line(memory.lines.at[0]), SPAN), by_column(memory.lines.at[0, pl.ds(0, SPAN)])
    left = jnp.where(column <= position, jnp.exp(total - of_change), 0.0)
    return products * spread(to_length(memory), SPAN) * by_column(memory.lines.at[1, pl.ds(0, SPAN)]) * left


def _put_shares(memory: Memory, head: Head, piece: Piece, shares: Float[Array, "64 32"]) -> None:
    """Keep the shares of queries, and those of keys with the sign and the factor that they have in a change."""
    row, column = places(SPAN)
    betas = spread(line(head.betas.at[pl.ds(piece.token + PAD, TILE)]), SPAN)
    of_keys = jnp.where(is_computed(piece, row) & (column < row), -betas * shares, 0.0)
    put(memory.plain, of_keys)
    of_blocks = jnp.where(column < lax.div(row, jnp.int32(BLOCK)) * BLOCK, of_keys, 0.0)
    put_pair(memory.shares, jnp.where(row < SPAN, of_blocks, shares))


def _recall(memory: Memory, head: Head, piece: Piece) -> None:
    """Bring what keys and queries recall of the matrix at the span's start to ``rows``."""

    def nothing() -> None:
        zeros = plgpu.layout_cast(jnp.zeros((TILE, TILE), jnp.float32), plgpu.Layout.WGMMA)
        for half in HALVES:
            put(memory.rows.at[:, half_of(half)], zeros)

    pl.when(piece.begin == 0)(nothing)

    @pl.when(piece.begin > 0)
    def _() -> None:
        faded = spread(jnp.exp(line(memory.lines.at[0])) * to_length(memory), TILE)

        def recall(half: Int[Array, ""]) -> None:
            tiles = [load_tile(head.start.at[half_of(of_key), half_of(half)]) for of_key in HALVES]

            def multiply(acc: Ref) -> Tile:
                for of_key, tile in enumerate(tiles):
                    put_pair(memory.pair, tile)
                    for part in range(2):
                        plgpu.wgmma(acc, memory.units.at[of_key], memory.pair.at[part])
                    plgpu.wgmma_wait(0)
                return acc[...]

            put(memory.rows.at[:, half_of(half)], faded * accumulated(multiply, TILE))

        repeat(0, len(HALVES), recall)


def _begin_changes(memory: Memory, head: Head, piece: Piece) -> None:
    """Make of what keys recall what their changes are without those of the span, which ``rows`` has before them."""
    row, _ = places(TILE)
    betas = spread(line(head.betas.at[pl.ds(piece.token + PAD, TILE)]), TILE)

    def begin(half: Int[Array, ""]) -> None:
        place, values = memory.rows.at[:, half_of(half)], _inputs(head, piece, half, (2,))
        recalled = load_tile(place)
        change = jnp.where(is_computed(piece, row), betas * (values - recalled), 0.0)
        put(place, jnp.where(row < SPAN, change, recalled))

    repeat(0, len(HALVES), begin)

    def keep_earlier() -> None:
        place, shape = memory.rows.at[pl.ds(0, SPAN)], (SPAN, HEAD)
        number = plgpu.layout_cast(lax.broadcasted_iota(jnp.int32, shape, 0), plgpu.Layout.WG_STRIDED(shape, 1))
        put(place, jnp.where(number < piece.used, load_whole(head.changes), load_whole(place)))

    pl.when(piece.used > 0)(keep_earlier)


def _solve(memory: Memory, piece: Piece) -> None:
    """Add to each change what it takes of those before it, in order."""

    def block(number: Int[Array, ""]) -> None:
        first = number * BLOCK
        row, _ = places(TILE)
        pl.when(number > 0)(lambda: _add_changes(memory, (row >= first) & (row < first + BLOCK)))
        changes: list[Array] = []
        for i in range(BLOCK):
            change = load_whole(memory.rows.at[first + i])
            for j, before in enumerate(changes):
                change = change + memory.plain[first + i, first + j] * before
            put(memory.rows.at[first + i], change)
            changes.append(change)

    repeat(lax.div(piece.used, jnp.int32(BLOCK)), lax.div(piece.end + BLOCK - 1, jnp.int32(BLOCK)), block)


def _add_changes(memory: Memory, chosen: Bool[Array, "64 64"]) -> None:
    """Add the shares of changes to the chosen rows."""

    def add(half: Int[Array, ""]) -> None:
        place = memory.rows.at[:, half_of(half)]
        rows = load_tile(place)
        put_pair(memory.narrow, rows)

        def multiply(acc: Ref) -> Tile:
            for share, change in ((0, 0), (0, 1), (1, 0)):
                plgpu.wgmma(acc, memory.shares.at[share], memory.narrow.at[change, pl.ds(0, SPAN)])
            return acc[...]

        put(place, jnp.where(chosen, rows + accumulated(multiply, TILE), rows))

    repeat(0, len(HALVES), add)
    plgpu.commit_smem()


def _keep(memory: Memory, head: Head, piece: Piece) -> None:
    """Store the changes and decays of an open span, or the matrix after one that has ended."""

    @pl.when(piece.end < SPAN)
    def _() -> None:
        def keep(i: Int[Array, ""]) -> None:
            put(head.changes.at[i], load_whole(memory.rows.at[i]))
            head.kept[i] = head.decays[piece.token + PAD + i]

        repeat(piece.used, piece.end, keep)

    pl.when(piece.end == SPAN)(lambda: _next_start(memory, head, piece))


def _next_start(memory: Memory, head: Head, piece: Piece) -> None:
    last = plgpu.layout_cast(jnp.full((TILE,), memory.lines[0, SPAN - 1]), BY_ROW)
    left = jnp.exp(last - line(memory.lines.at[0])) * line(memory.lines.at[1])
    left = jnp.where(row_numbers() < SPAN, left, 0.0)  # 0 of queries, since a wgmma takes no fewer rows
    fade = spread(jnp.exp(last), TILE)
    has_start = plgpu.layout_cast(jnp.full((TILE, TILE), piece.begin), plgpu.Layout.WGMMA) > 0

    def next_half(half: Int[Array, ""]) -> None:
        put_pair(memory.pair, load_tile(memory.rows.at[:, half_of(half)]) * spread(left, TILE))

        def next_quarter(of_key: Int[Array, ""]) -> None:
            def multiply(acc: Ref) -> Tile:
                for part in range(2):
                    plgpu.wgmma(acc, memory.units.at[of_key].transpose((1, 0)), memory.pair.at[part])
                return acc[...]

            added, place = accumulated(multiply, TILE), head.start.at[half_of(of_key), half_of(half)]
            put(place, jnp.where(has_start, load_tile(place), 0.0) * fade + added)

        repeat(0, len(HALVES), next_quarter)

    repeat(0, len(HALVES), next_half)


def _inputs(head: Head, piece: Piece, half: int | Int[Array, ""], which: tuple[int, ...]) -> Tile:
    """Return half of the numbers of a span's tokens in float32: of the columns ``which``, each in SPAN rows more.

    A piece of one token has its numbers in every row.
    """
    row, _ = places(TILE)
    columns = [pl.ds(head.columns[number] + half * TILE, TILE) for number in which]

    def in_rows(first: Array, *others: Array) -> Array:
        return jnp.where(row < SPAN, first, others[0]) if others else first

    def one() -> Array:
        return in_rows(*(by_column(head.x.at[piece.token + piece.used + PAD, part]) for part in columns))

    def some() -> Array:
        tokens = [pl.ds(piece.token + (PAD - SPAN * place), TILE) for place in range(len(which))]
        return in_rows(*(load_tile(head.x.at[rows, part]) for rows, part in zip(tokens, columns, strict=True)))

    loaded: Tile = lax.cond(piece.end - piece.used == 1, one, some)
    return loaded.astype(jnp.float32)
