"""Products of rows with the weights of their experts on Hopper: a persistent grid over the tiles that have rows.

Quantized weights stay codes until they are in shared memory. The warpgroup that multiplies makes numbers of them in its
registers (pallas_kernels.gpu.codes). It writes the numbers next to the codes, and wgmma reads them from there.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Shaped

from pallas_kernels.gpu.code_support import WIDE
from pallas_kernels.gpu.expert_support import COMPUTE, ROWS, TILE_K
from pallas_kernels.gpu.expert_tiles import GRANULE, Shape, cut
from pallas_kernels.gpu.persistent import CTA, H200_MULTIPROCESSORS, REGISTERS, CtaItems, Interpret, Ref, put, repeat

_THREAD = "warpgroup"


def expert_product(
    x: Float[Array, "S I"],
    weights: Shaped[Array, "L E O I"],
    layer: Int[Array, ""],
    starts: Int[Array, "E1"],
    scales: Float[Array, "L E G O"] | None = None,
    *,
    group: int | None = None,
    dtype: DTypeLike = jnp.float32,
    num_ctas: int = H200_MULTIPROCESSORS,
    interpret: Interpret = None,
) -> Float[Array, "S O"]:
    """Return x @ weight.T with the weight of each row's expert; see expert_product_ref.

    x and weights are of one dtype of 16 bits, or x is bfloat16 and weights are codes as ``plain_codes`` makes them.
    With ``scales`` each ``group`` of their inputs has one for each output; codes times scales are rounded to bfloat16.
    I and O are multiples of 64; O is one of 128 for results of 16 bits. NotImplementedError for others.

    A tile is 64 or 128 rows and up to 256 columns of one expert. Reads a weight once per tile of rows of its expert,
    and x once per 256 columns, mostly from the L2 cache; 2 * I * O FLOPs for each row of a tile.
    """
    shape = Shape.of(x, weights, group if scales is not None else None, dtype)
    of_groups = () if scales is None else (scales,)
    tiles, count = cut(starts, len(x), shape.rows)

    def body(x_ref: Ref, weights_ref: Ref, layer_ref: Ref, tiles_ref: Ref, count_ref: Ref, *rest: Ref) -> None:
        (*scales_ref, y_ref), shared = rest[: 1 + len(of_groups)], rest[1 + len(of_groups) :]
        x_stages, weight_stages, out, full, free, *of_codes = shared
        items = CtaItems(count_ref[0] * shape.groups, num_ctas)
        stages = x_stages, weight_stages, full, free, tuple(of_codes)
        pipe = _Pipe(shape, items, tiles_ref, *stages, checked=interpret is not None)
        warpgroup = lax.axis_index(_THREAD)

        @pl.when(warpgroup == COMPUTE)
        def _() -> None:
            plgpu.set_max_registers(REGISTERS[0], action="decrease")
            layer = layer_ref[0]
            pipe.load_all(x_ref, weights_ref.at[layer], *(scales.at[layer] for scales in scales_ref))

        @pl.when(warpgroup < COMPUTE)
        def _() -> None:
            plgpu.set_max_registers(REGISTERS[1], action="increase")

            def tile(i: Int[Array, ""]) -> None:
                for part, product in enumerate(pipe.products(i, warpgroup)):
                    _store(shape, tiles_ref, items[i], part, warpgroup, product, out.at[warpgroup], y_ref)

            repeat(0, items.mine, tile)
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((len(x), shape.outputs), dtype),
        scratch_types=shape.scratch(dtype),
        grid=(num_ctas,),
        grid_names=(CTA,),
        num_threads=COMPUTE + 1,
        thread_name=_THREAD,
        compiler_params=plgpu.CompilerParams(),
        interpret=interpret,
        kernel_name="expert_product",
    )(_padded(x, shape.rows), weights, layer.reshape(1), tiles, count, *of_groups)


def _padded(x: Float[Array, "S I"], rows: int) -> Float[Array, "P I"]:
    """Return x and at least ``rows`` more rows, for the last tile. The copy engine takes whole granules of rows."""
    return jnp.pad(x, ((0, rows + -len(x) % GRANULE), (0, 0)))


@dataclass(frozen=True)
class _Pipe:
    """x and weights on their way through the stages: filled by the loading warpgroup, freed by the others."""

    shape: Shape
    items: CtaItems
    tiles: Ref
    x: Ref
    weight: Ref
    full: Ref
    free: Ref
    of_codes: tuple[Ref, ...]
    """The numbers that codes become, WIDE tiles of each warpgroup, and the stages of their scales; () without codes."""
    checked: bool
    """Read what a wgmma reads, for the interpreter, whose race detector does not see a wgmma's reads."""

    def load_all(self, x_ref: Ref, weights_ref: Ref, scales_ref: Ref = None) -> None:
        """All that this CTA's items need, each stage as soon as it is free; returns when all have been used."""
        shape, stages = self.shape, self.shape.stages
        total = self.items.mine * shape.steps

        def load_item(i: Int[Array, ""]) -> None:
            item = self.items[i]
            tile = shape.tile(item)
            expert, row = self.tiles[tile], pl.multiple_of(self.tiles[tile + 1], GRANULE)

            def load(k: Int[Array, ""]) -> None:
                n = i * shape.steps + k
                stage = lax.rem(n, jnp.int32(stages))
                pl.when(n >= stages)(lambda: plgpu.barrier_wait(self.free.at[stage]))
                inner = pl.ds(k * TILE_K, TILE_K)
                for part in range(shape.row_parts):
                    source = x_ref.at[pl.ds(pl.multiple_of(row + part * ROWS, GRANULE), ROWS), inner]
                    plgpu.copy_gmem_to_smem(source, self.x.at[stage, part], self.full.at[stage])
                for half in range(COMPUTE):
                    source = weights_ref.at[expert, pl.ds(shape.column(item, half), shape.columns), inner]
                    plgpu.copy_gmem_to_smem(source, self.weight.at[stage, half], self.full.at[stage])
                    if scales_ref is not None and shape.codes is not None:
                        columns = pl.ds(shape.column(item, half), shape.columns)
                        source = scales_ref.at[expert, shape.codes.groups_of(k), columns]
                        plgpu.copy_gmem_to_smem(source, self.of_codes[1].at[stage, half], self.full.at[stage])

            repeat(0, shape.steps, load)

        def drain(n: Int[Array, ""]) -> None:
            plgpu.barrier_wait(self.free.at[lax.rem(n, jnp.int32(stages))])

        repeat(0, self.items.mine, load_item)
        repeat(jnp.maximum(total - stages, 0), total, drain)

    def products(self, i: Int[Array, ""], warpgroup: Int[Array, ""]) -> tuple[Float[Array, "64 columns"], ...]:
        """x @ weight.T of this warpgroup's columns of the CTA's item number i, in float32; one for each part of its
        rows."""
        shape, first = self.shape, i * self.shape.steps
        parts = range(shape.row_parts)

        def read(stage: Int[Array, ""]) -> None:
            if self.checked:
                _ = self.weight[stage, warpgroup], *(self.x[stage, part] for part in parts)
                plgpu.commit_smem()

        def release(n: Int[Array, ""]) -> None:
            stage = lax.rem(n, jnp.int32(shape.stages))
            read(stage)
            plgpu.barrier_arrive(self.free.at[stage])

        def multiply(*accumulators: Ref) -> tuple[Float[Array, "64 columns"], ...]:
            def step(k: Int[Array, ""]) -> None:
                stage = lax.rem(first + k, jnp.int32(shape.stages))
                plgpu.barrier_wait(self.full.at[stage])
                read(stage)
                weight = self._numbers(stage, k, warpgroup)
                for part, acc in zip(parts, accumulators, strict=True):
                    plgpu.wgmma(acc, self.x.at[stage, part], weight.transpose((1, 0)))
                plgpu.wgmma_wait(len(parts))
                pl.when(k > 0)(lambda: release(first + k - 1))

            repeat(0, shape.steps, step)
            results = tuple(acc[...] for acc in accumulators)
            release(first + shape.steps - 1)
            return results

        accumulator = plgpu.WGMMAAccumulatorRef((ROWS, shape.columns), jnp.float32)
        return tuple(pl.run_scoped(multiply, *[accumulator] * len(parts)))

    def _numbers(self, stage: Int[Array, ""], k: Int[Array, ""], warpgroup: Int[Array, ""]) -> Ref:
        """The weight in shared memory that a wgmma reads. Of codes the numbers are made in a tile that the wgmma before
        the last has read. Each warp has waited for its own part of that wgmma, and here for the other warps."""
        codes, weight = self.shape.codes, self.weight.at[stage, warpgroup]
        if codes is None:
            return weight
        wide, *scales = self.of_codes
        tile = wide.at[warpgroup, lax.rem(k, jnp.int32(WIDE))]
        plgpu.commit_smem()  # a barrier of the warpgroup
        put(tile, codes.numbers(weight[...], *(scales_ref.at[stage, warpgroup] for scales_ref in scales)))
        plgpu.commit_smem()
        return tile


def _store(
    shape: Shape,
    tiles: Ref,
    item: Int[Array, ""],
    part: int,
    half: Int[Array, ""],
    product: Float[Array, "64 columns"],
    out: Ref,
    y_ref: Ref,
) -> None:
    """Store the rows of an item that are its expert's, one by one, since their number varies."""
    tile, skipped = shape.tile(item), part * ROWS
    first = tiles[tile + 1] + skipped
    begin, end = (jnp.clip(tiles[tile + field] - skipped, 0, ROWS) for field in (2, 3))
    end = jnp.where(shape.is_past(item, half), begin, end)

    def store(columns: int, row: Int[Array, ""]) -> None:
        place = pl.ds(shape.column(item, half) + columns, shape.stored)
        plgpu.copy_smem_to_gmem(out.at[pl.ds(row, 1)], y_ref.at[pl.ds(first + row, 1), place])

    for columns in range(0, shape.columns, shape.stored):
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # what was here before has left ``out``
        put(out, product[:, columns : columns + shape.stored].astype(out.dtype))
        plgpu.commit_smem()
        repeat(begin, end, partial(store, columns))
