"""How a thread block multiplies on Hopper: one warpgroup loads stages of shared memory, two multiply what is there."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from pallas_kernels.activations import GATED
from pallas_kernels.gpu.dense_support import COMPUTE, ROWS, TIERS, TILE_K, Tile, Tiles, supports
from pallas_kernels.gpu.persistent import CtaItems, Ref, put, repeat

# mypy takes a method of jax without a body for an abstract one.
_SWIZZLED = (plgpu.TilingTransform((8, TILE_K)), plgpu.SwizzleTransform(128))  # type: ignore[abstract]
_FEW = 8
"""Rows that are loaded alone if there are no more: a whole tile of them would come from the L2 cache for each tile of
outputs."""


@dataclass(frozen=True)
class Call:
    """The static part of a call."""

    tiles: Tiles
    number: Any
    """The dtype of x and of the weight."""
    dtype: Any
    """The dtype of the result."""
    activation: str | None

    @classmethod
    def of(
        cls,
        x: jax.Array,
        weight: jax.Array,
        dtype: DTypeLike,
        num_ctas: int,
        tiles: tuple[Tile, ...] | None,
        activation: str | None = None,
    ) -> "Call":
        """Return the static part of a call, with ``tiles`` or those with the fewest waves.

        Raises NotImplementedError with the reason if the kernel does not take it.
        """
        _, outputs, inputs = weight.shape
        name = x.dtype.name if x.dtype == weight.dtype else f"{weight.dtype.name} and inputs of {x.dtype.name}"
        if reason := supports(inputs=inputs, outputs=outputs, dtype=name, activation=activation):
            raise NotImplementedError(reason)
        chosen = Tiles.of(inputs, outputs, gated=activation is not None, num_ctas=num_ctas)
        return cls(chosen if tiles is None else replace(chosen, by_tier=tiles), x.dtype, jnp.dtype(dtype), activation)

    @property
    def results(self) -> int:
        """Columns of the result."""
        return self.tiles.outputs // self.halves

    @property
    def halves(self) -> int:
        return 1 if self.activation is None else 2

    def scratch(self) -> list[Any]:
        stages = self.tiles.stages
        return [
            plgpu.SMEM((stages, COMPUTE, ROWS, TILE_K), self.number, transforms=_SWIZZLED),
            plgpu.SMEM((stages, self.tiles.columns, TILE_K), self.number, transforms=_SWIZZLED),
            plgpu.Barrier(num_arrivals=COMPUTE, num_barriers=stages),
            *(
                plgpu.Barrier(num_arrivals=self.copies_of_stage(tile), num_barriers=stages)
                for tile in self.tiles.by_tier
            ),
        ]

    def copies_of_stage(self, tile: Tile) -> int:
        """Return how many copies fill a stage."""
        return self.tiles.steps_of_stage(tile) * (tile.row_groups + len(self.pieces(tile)))

    def pieces(self, tile: Tile) -> list[tuple[int, int, int]]:
        """Return a tile's pieces of the weight: their first output, counted from the tile's; their first row in a
        stage; their length. The gates and the others of one warpgroup lie next to each other."""
        if self.halves == 1:
            return [(0, 0, tile.columns)]
        length = tile.columns // (2 * tile.column_groups)
        places = [(group * length, half * self.results) for group in range(tile.column_groups) for half in range(2)]
        return [(column + first, i * length, length) for i, (column, first) in enumerate(places)]


def in_tier(count: Int[Array, ""], of_tiers: list[Callable[[], None]]) -> None:
    """Do what is to be done for the tier of ``count`` rows."""
    for tier, do in enumerate(of_tiers):
        above = True if tier == 0 else count > TIERS[tier - 1]
        pl.when(above if tier == len(TIERS) else (count <= TIERS[tier]) & above)(do)


@dataclass(frozen=True)
class Walk:
    """The walk of a thread block over its items, in tiles of one shape. A stage is filled by the loading warpgroup and
    freed by the others."""

    call: Call
    tile: Tile
    count: Int[Array, ""]
    """Rows that are not padding."""
    num_ctas: int
    x: Ref
    weight: Ref
    free: Ref
    full: Ref
    checked: bool
    """Read what a wgmma reads, for the interpreter, whose race detector does not see a wgmma's reads."""

    @property
    def row_tiles(self) -> Int[Array, ""]:
        return lax.div(self.count + self.tile.rows - 1, jnp.int32(self.tile.rows))

    @property
    def items(self) -> CtaItems:
        of_rows = self.call.tiles.parts * self.call.tiles.outputs // self.tile.columns
        return CtaItems(self.row_tiles * of_rows, self.num_ctas)

    def place(self, item: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""], Int[Array, ""]]:
        """Return an item's first row, its first column of the result, and its part of the inputs.

        Items that share a piece of the weight follow one another, so that it is read from memory once.
        """
        row_tiles, columns = self.row_tiles, self.call.tiles.outputs // self.tile.columns
        row, rest = lax.rem(item, row_tiles), lax.div(item, row_tiles)
        column, part = lax.rem(rest, jnp.int32(columns)), lax.div(rest, jnp.int32(columns))
        return row * self.tile.rows, column * (self.tile.columns // self.call.halves), part

    @property
    def turns(self) -> int:
        return self.call.tiles.turns(self.tile)

    @property
    def steps(self) -> int:
        """Steps of TILE_K inputs that a stage holds."""
        return self.call.tiles.steps_of_stage(self.tile)

    def stage(self, n: Int[Array, ""]) -> Int[Array, ""]:
        return lax.rem(n, jnp.int32(self.call.tiles.stages))

    def load_all(self, x_ref: Ref, weight_ref: Ref) -> None:
        """Load what this thread block's items need, each stage as soon as it is free; wait until all are used."""
        items, stages = self.items, self.call.tiles.stages
        last_row = x_ref.shape[0] - ROWS

        def load_item(i: Int[Array, ""]) -> None:
            row, column, part = self.place(items[i])

            def load(turn: Int[Array, ""]) -> None:
                n = i * self.turns + turn
                stage = self.stage(n)
                pl.when(n >= stages)(lambda: plgpu.barrier_wait(self.free.at[stage]))
                for step in range(self.steps):
                    k = (part * self.turns + turn) * self.steps + step
                    inputs = pl.ds(pl.multiple_of(k * TILE_K, TILE_K), TILE_K)
                    for group in range(self.tile.row_groups):
                        first = pl.multiple_of(jnp.minimum(row + group * ROWS, last_row), ROWS)
                        self.load_rows(x_ref, first, inputs, stage, step * self.tile.row_groups + group)
                    for offset, place, length in self.call.pieces(self.tile):
                        source = weight_ref.at[pl.ds(pl.multiple_of(column + offset, 8), length), inputs]
                        target = self.weight.at[stage, pl.ds(step * self.tile.columns + place, length)]
                        plgpu.copy_gmem_to_smem(source, target, self.full.at[stage])

            repeat(0, self.turns, load)

        def drain(n: Int[Array, ""]) -> None:
            plgpu.barrier_wait(self.free.at[self.stage(n)])

        total = items.mine * self.turns
        repeat(0, items.mine, load_item)
        repeat(jnp.maximum(total - stages, 0), total, drain)

    def load_rows(self, x_ref: Ref, first: Int[Array, ""], inputs: Any, stage: Int[Array, ""], place: int) -> None:
        """Load ROWS rows of x, or _FEW if no others are used."""

        def copy(rows: int) -> None:
            target = self.x.at[stage, place, pl.ds(0, rows)]
            plgpu.copy_gmem_to_smem(x_ref.at[pl.ds(first, rows), inputs], target, self.full.at[stage])

        if self.tile.row_groups > 1:
            copy(ROWS)
            return
        pl.when(self.count <= _FEW)(partial(copy, _FEW))
        pl.when(self.count > _FEW)(partial(copy, ROWS))

    def compute_all(self, warpgroup: Int[Array, ""], y_ref: Ref, residual_ref: Ref = None) -> None:
        """Compute this warpgroup's results of the thread block's items."""
        items = self.items
        group, half = (warpgroup, 0) if self.tile.row_groups > 1 else (0, warpgroup)
        width = self.tile.columns // self.tile.column_groups // self.call.halves

        def compute(i: Int[Array, ""]) -> None:
            first, column, part = self.place(items[i])
            row = first + group * ROWS
            result = self.result(self.product(i, group, half))

            @pl.when(row < self.count)
            def _() -> None:
                rows = pl.ds(pl.multiple_of(row, ROWS), ROWS)
                columns = pl.ds(pl.multiple_of(column + half * width, 8), width)
                value = result
                if residual_ref is not None:
                    value = load(residual_ref.at[rows, columns]) + result
                put(y_ref.at[part, rows, columns], value)

        repeat(0, items.mine, compute)

    def result(self, product: Float[Array, "64 columns"]) -> Float[Array, "64 results"]:
        """Return the results of a product, of the wanted dtype."""
        if self.call.activation is not None:
            width = product.shape[1] // 2
            product = GATED[self.call.activation](product[:, :width], product[:, width:])
        return product.astype(self.call.dtype)

    def product(self, i: Int[Array, ""], group: Any, half: Any) -> Float[Array, "64 columns"]:
        """Return the product of this warpgroup's rows and columns of the thread block's item number i."""
        columns = self.tile.columns // self.tile.column_groups

        def operands(stage: Int[Array, ""], step: int) -> tuple[Ref, Ref]:
            first = step * self.tile.columns + half * columns
            if not isinstance(first, int):
                first = pl.multiple_of(first, 8)
            place = step * self.tile.row_groups + group
            return self.x.at[stage, place], self.weight.at[stage, pl.ds(first, columns)]

        def read(stage: Int[Array, ""]) -> None:
            if self.checked:
                for step in range(self.steps):
                    _ = [operand[...] for operand in operands(stage, step)]
                plgpu.commit_smem()

        def release(n: Int[Array, ""]) -> None:
            read(self.stage(n))
            plgpu.barrier_arrive(self.free.at[self.stage(n)])

        def multiply(acc: Ref) -> Float[Array, "64 columns"]:
            def turn(k: Int[Array, ""]) -> None:
                n = i * self.turns + k
                stage = self.stage(n)
                plgpu.barrier_wait(self.full.at[stage])
                read(stage)
                for step in range(self.steps):
                    x, weight = operands(stage, step)
                    plgpu.wgmma(acc, x, weight.transpose((1, 0)))
                plgpu.wgmma_wait(self.steps)
                pl.when(k > 0)(lambda: release(n - 1))

            repeat(0, self.turns, turn)
            product = acc[...]
            release((i + 1) * self.turns - 1)
            return product

        result: Array = pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef((ROWS, columns), jnp.float32))
        return result


def load(ref: Ref) -> Float[Array, "64 columns"]:
    """Return numbers of global memory in the registers that hold a product's."""
    loaded: Array = plgpu.load(ref, layout=plgpu.Layout.WGMMA, optimized=False)
    return loaded
