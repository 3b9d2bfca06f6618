"""How a thread block multiplies on Hopper: one warpgroup loads stages of shared memory, two multiply what is there."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.activations import GATED
from pallas_kernels.gpu.dense_call import Call
from pallas_kernels.gpu.dense_codes import Converter
from pallas_kernels.gpu.dense_support import ROWS, TIERS, TILE_K, Tile
from pallas_kernels.gpu.persistent import CtaItems, Ref, put, repeat

_FEW = 8
"""Rows that are loaded alone if there are no more: a whole tile of them would come from the L2 cache for each tile of
outputs."""


def in_tier(count: Int[Array, ""], of_tiers: list[Callable[[], None]]) -> None:
    """Do what is to be done for the tier of ``count`` rows."""
    for tier, do in enumerate(of_tiers):
        above = True if tier == 0 else count > TIERS[tier - 1]
        pl.when(above if tier == len(TIERS) else (count <= TIERS[tier]) & above)(do)


class Share(NamedTuple):
    """A compute warpgroup's share of a tile: its group of rows, and its half of the columns if these are divided."""

    warpgroup: Int[Array, ""]
    rows: Any
    columns: Any


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
    wide: Ref = None
    ready: Ref = None
    scales: Ref = None
    """Of codes, see ``Converter``."""

    @property
    def converter(self) -> Converter | None:
        """What makes numbers of the codes of a stage; None: these are numbers."""
        codes = self.call.codes
        return None if codes is None else Converter(codes, self.weight, self.wide, self.ready, self.scales)

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

    def load_all(self, x_ref: Ref, weight_ref: Ref, scales_ref: Ref) -> None:
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
                        source = pl.ds(pl.multiple_of(column + offset, 8), length)
                        target = pl.ds(step * self.tile.columns + place, length)
                        self.load_piece(weight_ref.at[source, inputs], self.weight.at[stage, target], stage)
                        self.load_scales(scales_ref, k, source, stage, target)

            repeat(0, self.turns, load)

        def drain(n: Int[Array, ""]) -> None:
            plgpu.barrier_wait(self.free.at[self.stage(n)])

        total = items.mine * self.turns
        repeat(0, items.mine, load_item)
        repeat(jnp.maximum(total - stages, 0), total, drain)

    def load_piece(self, source: Ref, target: Ref, stage: Int[Array, ""]) -> None:
        plgpu.copy_gmem_to_smem(source, target, self.full.at[stage])

    def load_scales(self, scales_ref: Ref, k: Int[Array, ""], source: Any, stage: Int[Array, ""], target: Any) -> None:
        """Load the scales that multiply the codes of a piece."""
        codes = self.call.codes
        for i in range(0 if codes is None else codes.per_stage):
            assert codes is not None
            of_group = scales_ref.at[codes.first_group(k) + i, source]
            self.load_piece(of_group, self.scales.at[stage, i, target], stage)

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

    def compute_all(self, warpgroup: Int[Array, ""], y_ref: Ref, scales_ref: Ref, residual_ref: Ref) -> None:
        """Compute this warpgroup's results of the thread block's items."""
        items = self.items
        share = Share(warpgroup, *((warpgroup, 0) if self.tile.row_groups > 1 else (0, warpgroup)))
        width = self.tile.columns // self.tile.column_groups // self.call.halves

        def compute(i: Int[Array, ""]) -> None:
            first, column, part = self.place(items[i])
            row, column = first + share.rows * ROWS, column + share.columns * width
            result = self.result(self.scaled(self.product(i, share), scales_ref, column))

            @pl.when(row < self.count)
            def _() -> None:
                rows = pl.ds(pl.multiple_of(row, ROWS), ROWS)
                columns = pl.ds(pl.multiple_of(column, 8), width)
                value = result
                if residual_ref is not None:
                    value = load(residual_ref.at[rows, columns]) + result
                put(y_ref.at[part, rows, columns], value)

        repeat(0, items.mine, compute)

    def scaled(
        self, product: Float[Array, "64 columns"], scales_ref: Ref, column: Int[Array, ""]
    ) -> Float[Array, "64 columns"]:
        """Return a product with the scales of whole outputs. ``column``: of its first result."""
        if self.call.codes is None or self.call.codes.group is not None:
            return product
        width = product.shape[1] // self.call.halves
        halves = []
        for half in range(self.call.halves):
            place = pl.ds(pl.multiple_of(column + half * self.call.results, 8), width)
            scales = plgpu.load(scales_ref.at[0, place], layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)
            factor = lax.broadcast_in_dim(scales.astype(jnp.float32), (ROWS, width), (1,))
            halves.append(product[:, half * width : (half + 1) * width] * factor)
        return halves[0] if len(halves) == 1 else jnp.concatenate(halves, axis=1)

    def result(self, product: Float[Array, "64 columns"]) -> Float[Array, "64 results"]:
        """Return the results of a product, of the wanted dtype."""
        if self.call.activation is not None:
            width = product.shape[1] // 2
            product = GATED[self.call.activation](product[:, :width], product[:, width:])
        return product.astype(self.call.dtype)

    def product(self, i: Int[Array, ""], share: Share) -> Float[Array, "64 columns"]:
        """Return the product of this warpgroup's rows and columns of the thread block's item number i."""

        def multiply(acc: Ref) -> Float[Array, "64 columns"]:
            repeat(0, self.turns, lambda k: self.turn(acc, i * self.turns + k, k > 0, share))
            product = acc[...]
            self.release((i + 1) * self.turns - 1, share)
            return product

        columns = self.tile.columns // self.tile.column_groups
        result: Array = pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef((ROWS, columns), jnp.float32))
        return result

    def turn(self, acc: Ref, n: Int[Array, ""], follows: Bool[Array, ""], share: Share) -> None:
        """Add the products of stage number n. ``follows``: another one of the same item."""

        def finish(running: int) -> None:
            plgpu.wgmma_wait(running)
            pl.when(follows)(lambda: self.release(n - 1, share))

        stage, converter = self.stage(n), self.converter
        plgpu.barrier_wait(self.full.at[stage])
        if converter is not None:
            rows = self.steps * self.tile.columns
            converter.convert(n, stage, rows, share.warpgroup, before=partial(finish, 0))
        self.read(n, share)
        for step in range(self.steps):
            x, weight = self.operands(n, step, share)
            plgpu.wgmma(acc, x, weight.transpose((1, 0)))
        if converter is None:
            finish(self.steps)

    def operands(self, n: Int[Array, ""], step: int, share: Share) -> tuple[Ref, Ref]:
        """Return what a wgmma multiplies."""
        stage, columns = self.stage(n), self.tile.columns // self.tile.column_groups
        first = step * self.tile.columns + share.columns * columns
        if not isinstance(first, int):
            first = pl.multiple_of(first, 8)
        weight = self.weight.at[stage] if self.converter is None else self.converter.tile(n)
        return self.x.at[stage, step * self.tile.row_groups + share.rows], weight.at[pl.ds(first, columns)]

    def read(self, n: Int[Array, ""], share: Share) -> None:
        """Read what the wgmmas of a stage read, if that is to be checked."""
        if self.checked:
            for step in range(self.steps):
                _ = [operand[...] for operand in self.operands(n, step, share)]
            plgpu.commit_smem()

    def release(self, n: Int[Array, ""], share: Share) -> None:
        self.read(n, share)
        plgpu.barrier_arrive(self.free.at[self.stage(n)])


def load(ref: Ref) -> Float[Array, "64 columns"]:
    """Return numbers of global memory in the registers that hold a product's."""
    loaded: Array = plgpu.load(ref, layout=plgpu.Layout.WGMMA, optimized=False)
    return loaded
