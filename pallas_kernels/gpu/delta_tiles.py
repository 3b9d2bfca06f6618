"""Tiles of 64 rows in a warpgroup's registers, and where the Hopper kernel of gated delta nets keeps its numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.gpu.delta_support import HEAD, SPAN, TILE
from pallas_kernels.gpu.persistent import Ref, put

PAD = TILE
"""Tokens before the first and after the last one that a tile of rows may reach."""
HALVES = range(HEAD // TILE)
BY_ROW, _BY_COLUMN = plgpu.Layout.WGMMA.reduce(1), plgpu.Layout.WGMMA.reduce(0)
# mypy takes a method of jax without a body for an abstract one.
_WIDE = (plgpu.TilingTransform((8, TILE)), plgpu.SwizzleTransform(128))  # type: ignore[abstract]
_NARROW = (plgpu.TilingTransform((8, SPAN)), plgpu.SwizzleTransform(64))  # type: ignore[abstract]

Tile = Float[Array, "64 64"]


@dataclass(frozen=True)
class Memory:
    """Shared memory of a thread block."""

    units: Ref
    """Keys and queries, by halves of their numbers, before they are divided by their lengths."""
    pair: Ref
    """Numbers as two of bfloat16: of the matrix, or of changes."""
    shares: Ref
    """What each row takes of each change, as two of bfloat16."""
    narrow: Ref
    """Changes as two of bfloat16, in the swizzle of ``shares``."""
    rows: Ref
    """Rows of float32: of keys, what they recall and then the changes; of queries, the results."""
    plain: Ref
    """The shares in float32."""
    lines: Ref
    """A number of each row: the sum of decays, and the factor that makes a key's or a query's length 1."""

    @staticmethod
    def shapes() -> tuple[Any, ...]:
        """Return what ``scratch_types`` of a kernel holds, in the order of the fields."""
        return (
            plgpu.SMEM((len(HALVES), TILE, TILE), jnp.bfloat16, transforms=_WIDE),
            plgpu.SMEM((2, TILE, TILE), jnp.bfloat16, transforms=_WIDE),
            plgpu.SMEM((2, TILE, SPAN), jnp.bfloat16, transforms=_NARROW),
            plgpu.SMEM((2, TILE, TILE), jnp.bfloat16, transforms=_NARROW),
            plgpu.SMEM((TILE, HEAD), jnp.float32),
            plgpu.SMEM((TILE, SPAN), jnp.float32),
            plgpu.SMEM((2, TILE), jnp.float32),
        )


@dataclass(frozen=True)
class Head:
    """Where one head's inputs and its row's state in one layer are in global memory.

    ``x``: the tokens of all rows, PAD more before and after them. ``columns``: where a token's query, key and value of
    the head begin. ``decays`` and ``betas``: of the tokens, padded as x is. ``kept``: decays of the open span.
    """

    x: Ref
    columns: tuple[Any, Any, Any]
    decays: Ref
    betas: Ref
    start: Ref
    keys: Ref
    changes: Ref
    kept: Ref


@dataclass(frozen=True)
class Piece:
    """Consecutive tokens of one span. ``begin``: the span's first position, of which the token would be number
    ``token``. Positions ``used`` to ``end``, counted from there, are computed."""

    begin: Int[Array, ""]
    token: Int[Array, ""]
    used: Int[Array, ""]
    end: Int[Array, ""]


def put_pair(place: Ref, numbers: Float[Array, "64 columns"]) -> None:
    """Store numbers as two of bfloat16, for a wgmma."""
    near = numbers.astype(jnp.bfloat16)
    put(place.at[0], near)
    put(place.at[1], (numbers - near.astype(jnp.float32)).astype(jnp.bfloat16))
    plgpu.commit_smem()


def accumulated(multiply: Callable[[Ref], Array], columns: int) -> Float[Array, "64 columns"]:
    """Return what wgmmas add up to, which ``multiply(accumulator)`` starts and reads."""
    result: Array = pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef((TILE, columns), jnp.float32))
    return result


def is_computed(piece: Piece, row: Int[Array, "64 columns"]) -> Bool[Array, "64 columns"]:
    """Whether a row is that of a key that the piece brings."""
    return (row >= piece.used) & (row < piece.end)


def to_length(memory: Memory) -> Float[Array, "64"]:
    """Return what makes the length of each key 1, and that of each query 1 / sqrt(HEAD)."""
    return line(memory.lines.at[1]) * jnp.where(row_numbers() < SPAN, 1.0, HEAD**-0.5)


def row_numbers() -> Int[Array, "64"]:
    """Return the number of each row."""
    return plgpu.layout_cast(lax.broadcasted_iota(jnp.int32, (TILE,), 0), BY_ROW)


def places(columns: int) -> tuple[Int[Array, "64 columns"], Int[Array, "64 columns"]]:
    """Return the row and the column of each number of a tile."""
    numbers = (lax.broadcasted_iota(jnp.int32, (TILE, columns), axis) for axis in range(2))
    row, column = (plgpu.layout_cast(number, plgpu.Layout.WGMMA) for number in numbers)
    return row, column


def half_of(number: int | Int[Array, ""]) -> Any:
    """Return the slice of one of the HALVES of a head's numbers."""
    begin = number * TILE
    return pl.ds(begin if isinstance(begin, int) else pl.multiple_of(begin, TILE), TILE)


def line(ref: Ref) -> Float[Array, "64"]:
    """Return a number of each row."""
    return _load(ref, BY_ROW)


def spread(line: Float[Array, "64"], columns: int) -> Float[Array, "64 columns"]:
    """Return a tile with a number of each row in all of its columns."""
    return lax.broadcast_in_dim(line, (TILE, columns), (0,))


def by_column(ref: Ref) -> Float[Array, "64 columns"]:
    """Return a tile with a number for each column."""
    return lax.broadcast_in_dim(_load(ref, _BY_COLUMN), (TILE, *ref.shape), (1,))


def load_tile(ref: Ref) -> Tile:
    """Return numbers in the registers that hold a product's."""
    return _load(ref, plgpu.Layout.WGMMA)


def load_whole(ref: Ref) -> Array:
    """Return contiguous numbers, spread over the threads."""
    return _load(ref, plgpu.Layout.WG_STRIDED(ref.shape, 1))


def _load(ref: Ref, layout: Any) -> Array:
    loaded: Array = plgpu.load(ref, layout=layout, optimized=False)
    return loaded
