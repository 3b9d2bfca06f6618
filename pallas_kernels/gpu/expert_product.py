"""Products of rows with the weights of their experts on Hopper: a persistent grid over the tiles that have rows."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from pallas_kernels.gpu.persistent import CTA, H200_MULTIPROCESSORS, REGISTERS, Interpret, Items, Ref, put, repeat

ROWS = 64
"""Of a wgmma, in each of which a row has the same bits. A tile has as many, or twice as many with MANY_ROWS."""
MANY_ROWS = 64
"""Of an expert, on average of all: from so many on, tiles of 128 rows need fewer bytes of the L2 cache per product."""
GRANULE = 8
"""Rows of the swizzled layout. A tile begins at a multiple of it; rows of the expert before it are not stored."""
COMPUTE = 2
"""Compute warpgroups, each with half of a tile's columns, or with half of its rows if these are 128; one more loads."""
TILE_K = 64
"""Of the inputs, in a stage: a row of 128 bytes."""
STAGES = 4, 3
"""With tiles of 64 and of 128 rows."""
_MAX_COLUMNS = 128
"""Of half a tile: float32 results of two warpgroups then fit beside the stages."""
# mypy takes a method of jax without a body for an abstract one.
_DTYPES = ("bfloat16", "float16")
_SWIZZLED = (plgpu.TilingTransform((8, TILE_K)), plgpu.SwizzleTransform(128))  # type: ignore[abstract]
_THREAD = "warpgroup"
_FIELDS = 4
"""Numbers of a tile: expert, first row, and the first and the end of what is stored of it."""


def supports(*, inputs: int, outputs: int, dtype: str) -> str | None:
    """Return why the kernel cannot multiply with weights [outputs, inputs], or None if it can."""
    if dtype not in _DTYPES:
        return f"weights of {dtype} are not {' or '.join(_DTYPES)}"
    if inputs % TILE_K or not _columns(outputs):
        return f"{inputs} inputs and {outputs} outputs are not multiples of {TILE_K} and 32"
    return None


def expert_product(
    x: Float[Array, "S I"],
    weights: Float[Array, "L E O I"],
    layer: Int[Array, ""],
    starts: Int[Array, "E1"],
    *,
    dtype: DTypeLike = jnp.float32,
    num_ctas: int = H200_MULTIPROCESSORS,
    interpret: Interpret = None,
) -> Float[Array, "S O"]:
    """Return x @ weight.T with the weight of each row's expert; see expert_product_ref.

    x and weights are of one dtype of 16 bits; I is a multiple of 64 and O of 32. NotImplementedError for others.

    A tile is 64 or 128 rows and up to 256 columns of one expert. Reads a weight once per tile of rows of its expert,
    and x once per 256 columns, mostly from the L2 cache; 2 * I * O FLOPs for each row of a tile.
    """
    shape = _Shape.of(x, weights)
    tiles, count = _cut(starts, len(x), shape.rows)

    def body(
        x_ref: Ref, weights_ref: Ref, layer_ref: Ref, tiles_ref: Ref, count_ref: Ref, y_ref: Ref, *rest: Ref
    ) -> None:
        x_stages, weight_stages, out, full, free = rest
        items = Items(count_ref[0] * shape.groups, num_ctas)
        pipe = _Pipe(shape, items, tiles_ref, x_stages, weight_stages, full, free, checked=interpret is not None)
        warpgroup = lax.axis_index(_THREAD)

        @pl.when(warpgroup == COMPUTE)
        def _() -> None:
            plgpu.set_max_registers(REGISTERS[0], action="decrease")
            pipe.load_all(x_ref, weights_ref.at[layer_ref[0]])

        @pl.when(warpgroup < COMPUTE)
        def _() -> None:
            plgpu.set_max_registers(REGISTERS[1], action="increase")

            def tile(i: Int[Array, ""]) -> None:
                products = zip(shape.halves(warpgroup), pipe.products(i, warpgroup), strict=True)
                for half, product in products:
                    _store(shape, tiles_ref, items[i], warpgroup, half, product, out.at[warpgroup], y_ref)

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
    )(jnp.pad(x, ((0, shape.rows), (0, 0))), weights, layer.reshape(1), tiles, count)


def _cut(starts: Int[Array, "E1"], rows: int, of_tile: int) -> tuple[Int[Array, "n"], Int[Array, "1"]]:
    """The tiles of all experts, _FIELDS numbers each, and how many there are; ``of_tile`` rows in each."""
    experts = len(starts) - 1
    origins = starts[:-1] // GRANULE * GRANULE
    tiles = jnp.where(starts[1:] > starts[:-1], (starts[1:] - origins + of_tile - 1) // of_tile, 0)
    numbers = jnp.arange(experts)
    # Sums of few numbers are one operation on a GPU, cumsum and searchsorted several.
    ends = jnp.sum(jnp.where(numbers <= numbers[:, None], tiles, 0), axis=1)
    index = jnp.arange((rows + min(experts, rows) * (of_tile + GRANULE - 2)) // of_tile)
    expert = jnp.minimum(jnp.sum(ends <= index[:, None], axis=1, dtype=jnp.int32), experts - 1)
    first = origins[expert] + (index - (ends - tiles)[expert]) * of_tile
    begin, end = (jnp.clip(bound - first, 0, of_tile) for bound in (starts[expert], starts[expert + 1]))
    return jnp.stack([expert, first, begin, end], axis=1).astype(jnp.int32).reshape(-1), ends[-1:].astype(jnp.int32)


def _columns(outputs: int) -> int:
    """Return a warpgroup's columns of a tile: as many as divide the outputs, or 0 if no number does."""
    return next((n for n in range(_MAX_COLUMNS, 0, -16) if outputs % (COMPUTE * n) == 0), 0)


@dataclass(frozen=True)
class _Shape:
    """What is static of a call."""

    dtype: Any
    inputs: int
    outputs: int
    columns: int
    """Of half a tile."""
    row_parts: int
    """Of a tile, of ROWS rows each: two warpgroups have a part each, or else half the columns of the one part."""

    @classmethod
    def of(cls, x: jax.Array, weights: jax.Array) -> "_Shape":
        _, experts, outputs, inputs = weights.shape
        if x.dtype != weights.dtype:
            raise NotImplementedError(f"x is {x.dtype} and weights are {weights.dtype}")
        if reason := supports(inputs=inputs, outputs=outputs, dtype=x.dtype.name):
            raise NotImplementedError(reason)
        return cls(x.dtype, inputs, outputs, _columns(outputs), 2 if len(x) >= MANY_ROWS * experts else 1)

    @property
    def rows(self) -> int:
        """Of a tile."""
        return self.row_parts * ROWS

    @property
    def stages(self) -> int:
        return STAGES[self.row_parts - 1]

    def row_part(self, warpgroup: Int[Array, ""]) -> Int[Array, ""] | int:
        """The part of a tile's rows that a warpgroup multiplies."""
        return warpgroup if self.row_parts > 1 else 0

    def halves(self, warpgroup: Int[Array, ""]) -> tuple[Int[Array, ""] | int, ...]:
        """The halves of a tile's columns that a warpgroup computes."""
        return tuple(range(COMPUTE)) if self.row_parts > 1 else (warpgroup,)

    @property
    def groups(self) -> int:
        """Tiles beside one another, of the same rows."""
        return self.outputs // (COMPUTE * self.columns)

    @property
    def steps(self) -> int:
        return self.inputs // TILE_K

    def column(self, item: Int[Array, ""], half: Int[Array, ""] | int) -> Int[Array, ""]:
        """The first column of half an item."""
        return pl.multiple_of((lax.rem(item, jnp.int32(self.groups)) * COMPUTE + half) * self.columns, 16)

    def tile(self, item: Int[Array, ""]) -> Int[Array, ""]:
        """Where the numbers of an item's tile begin."""
        return lax.div(item, jnp.int32(self.groups)) * _FIELDS

    def scratch(self, dtype: DTypeLike) -> list[Any]:
        return [
            plgpu.SMEM((self.stages, self.row_parts, ROWS, TILE_K), self.dtype, transforms=_SWIZZLED),
            plgpu.SMEM((self.stages, COMPUTE, self.columns, TILE_K), self.dtype, transforms=_SWIZZLED),
            plgpu.SMEM((COMPUTE, ROWS, self.columns), dtype),
            plgpu.Barrier(num_arrivals=self.row_parts + COMPUTE, num_barriers=self.stages),
            plgpu.Barrier(num_arrivals=COMPUTE, num_barriers=self.stages),
        ]


@dataclass(frozen=True)
class _Pipe:
    """x and weights on their way through the stages: filled by the loading warpgroup, freed by the others."""

    shape: _Shape
    items: Items
    tiles: Ref
    x: Ref
    weight: Ref
    full: Ref
    free: Ref
    checked: bool
    """Read what a wgmma reads, for the interpreter, whose race detector does not see a wgmma's reads."""

    def load_all(self, x_ref: Ref, weights_ref: Ref) -> None:
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

            repeat(0, shape.steps, load)

        def drain(n: Int[Array, ""]) -> None:
            plgpu.barrier_wait(self.free.at[lax.rem(n, jnp.int32(stages))])

        repeat(0, self.items.mine, load_item)
        repeat(jnp.maximum(total - stages, 0), total, drain)

    def products(self, i: Int[Array, ""], warpgroup: Int[Array, ""]) -> tuple[Float[Array, "64 columns"], ...]:
        """x @ weight.T of this warpgroup's part of the CTA's item number i, in float32; one for each of its halves."""
        shape, first = self.shape, i * self.shape.steps
        part, halves = shape.row_part(warpgroup), shape.halves(warpgroup)

        def read(stage: Int[Array, ""]) -> None:
            if self.checked:
                _ = self.x[stage, part], *(self.weight[stage, half] for half in halves)
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
                for half, acc in zip(halves, accumulators, strict=True):
                    plgpu.wgmma(acc, self.x.at[stage, part], self.weight.at[stage, half].transpose((1, 0)))
                plgpu.wgmma_wait(len(halves))
                pl.when(k > 0)(lambda: release(first + k - 1))

            repeat(0, shape.steps, step)
            results = tuple(acc[...] for acc in accumulators)
            release(first + shape.steps - 1)
            return results

        accumulator = plgpu.WGMMAAccumulatorRef((ROWS, shape.columns), jnp.float32)
        return tuple(pl.run_scoped(multiply, *[accumulator] * len(halves)))


def _store(
    shape: _Shape,
    tiles: Ref,
    item: Int[Array, ""],
    warpgroup: Int[Array, ""],
    half: Int[Array, ""] | int,
    product: Float[Array, "64 columns"],
    out: Ref,
    y_ref: Ref,
) -> None:
    """Store the rows of an item that are its expert's, one by one, since their number is no constant."""
    tile, skipped = shape.tile(item), shape.row_part(warpgroup) * ROWS
    columns = pl.ds(shape.column(item, half), shape.columns)
    first = tiles[tile + 1] + skipped
    begin, end = (jnp.clip(tiles[tile + field] - skipped, 0, ROWS) for field in (2, 3))
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # what was here before has left ``out``
    put(out, product.astype(out.dtype))
    plgpu.commit_smem()

    def store(row: Int[Array, ""]) -> None:
        plgpu.copy_smem_to_gmem(out.at[pl.ds(row, 1)], y_ref.at[pl.ds(first + row, 1), columns])

    repeat(begin, end, store)
