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
"""Of a tile: the rows of a wgmma."""
GRANULE = 8
"""Rows of the swizzled layout. A tile begins at a multiple of it; rows of the expert before it are not stored."""
COMPUTE = 2
"""Compute warpgroups, which share a tile's rows and have columns of their own; one more loads."""
TILE_K = 64
"""Of the inputs, in a stage: a row of 128 bytes."""
STAGES = 4
_MAX_COLUMNS = 128
"""Of a warpgroup: float32 results of two then fit beside the stages."""
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

    A tile is 64 rows and up to 256 columns of one expert. Reads a weight once per 64 rows of its expert, and x once per
    256 columns, mostly from the L2 cache; 2 * I * O FLOPs for each row of a tile.
    """
    shape = _Shape.of(x, weights)
    tiles, count = _cut(starts, len(x))

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
                _store(shape, tiles_ref, items[i], warpgroup, pipe.product(i, warpgroup), out.at[warpgroup], y_ref)

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
    )(jnp.pad(x, ((0, ROWS), (0, 0))), weights, layer.reshape(1), tiles, count)


def _cut(starts: Int[Array, "E1"], rows: int) -> tuple[Int[Array, "n"], Int[Array, "1"]]:
    """The tiles of all experts, _FIELDS numbers each, and how many there are."""
    experts = len(starts) - 1
    origins = starts[:-1] // GRANULE * GRANULE
    tiles = jnp.where(starts[1:] > starts[:-1], (starts[1:] - origins + ROWS - 1) // ROWS, 0)
    ends = jnp.cumsum(tiles)
    index = jnp.arange((rows + min(experts, rows) * (ROWS + GRANULE - 2)) // ROWS)
    expert = jnp.minimum(jnp.searchsorted(ends, index, side="right", method="compare_all"), experts - 1)
    first = origins[expert] + (index - (ends - tiles)[expert]) * ROWS
    begin, end = (jnp.clip(bound - first, 0, ROWS) for bound in (starts[expert], starts[expert + 1]))
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
    """Of a warpgroup's part of a tile."""

    @classmethod
    def of(cls, x: jax.Array, weights: jax.Array) -> "_Shape":
        *_, outputs, inputs = weights.shape
        if x.dtype != weights.dtype:
            raise NotImplementedError(f"x is {x.dtype} and weights are {weights.dtype}")
        if reason := supports(inputs=inputs, outputs=outputs, dtype=x.dtype.name):
            raise NotImplementedError(reason)
        return cls(x.dtype, inputs, outputs, _columns(outputs))

    @property
    def groups(self) -> int:
        """Tiles beside one another, of the same rows."""
        return self.outputs // (COMPUTE * self.columns)

    @property
    def steps(self) -> int:
        return self.inputs // TILE_K

    def column(self, item: Int[Array, ""], warpgroup: Int[Array, ""] | int) -> Int[Array, ""]:
        """The first column of a warpgroup's part of an item."""
        part = lax.rem(item, jnp.int32(self.groups)) * COMPUTE + warpgroup
        return pl.multiple_of(part * self.columns, 16)

    def tile(self, item: Int[Array, ""]) -> Int[Array, ""]:
        """Where the numbers of an item's tile begin."""
        return lax.div(item, jnp.int32(self.groups)) * _FIELDS

    def scratch(self, dtype: DTypeLike) -> list[Any]:
        return [
            plgpu.SMEM((STAGES, ROWS, TILE_K), self.dtype, transforms=_SWIZZLED),
            plgpu.SMEM((STAGES, COMPUTE, self.columns, TILE_K), self.dtype, transforms=_SWIZZLED),
            plgpu.SMEM((COMPUTE, ROWS, self.columns), dtype),
            plgpu.Barrier(num_arrivals=1 + COMPUTE, num_barriers=STAGES),
            plgpu.Barrier(num_arrivals=COMPUTE, num_barriers=STAGES),
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
        shape, steps = self.shape, jnp.int32(self.shape.steps)
        total = self.items.mine * steps

        def load(n: Int[Array, ""]) -> None:
            stage = lax.rem(n, jnp.int32(STAGES))
            pl.when(n >= STAGES)(lambda: plgpu.barrier_wait(self.free.at[stage]))
            item = self.items[lax.div(n, steps)]
            tile = shape.tile(item)
            inner = pl.ds(lax.rem(n, steps) * TILE_K, TILE_K)
            rows = pl.ds(pl.multiple_of(self.tiles[tile + 1], GRANULE), ROWS)
            plgpu.copy_gmem_to_smem(x_ref.at[rows, inner], self.x.at[stage], self.full.at[stage])
            for part in range(COMPUTE):
                columns = pl.ds(shape.column(item, part), shape.columns)
                source = weights_ref.at[self.tiles[tile], columns, inner]
                plgpu.copy_gmem_to_smem(source, self.weight.at[stage, part], self.full.at[stage])

        def drain(n: Int[Array, ""]) -> None:
            plgpu.barrier_wait(self.free.at[lax.rem(n, jnp.int32(STAGES))])

        repeat(0, total, load)
        repeat(jnp.maximum(total - STAGES, 0), total, drain)

    def product(self, i: Int[Array, ""], warpgroup: Int[Array, ""]) -> Float[Array, "64 columns"]:
        """x @ weight.T of this warpgroup's columns of the CTA's item number i, in float32."""
        first = i * self.shape.steps

        def read(stage: Int[Array, ""]) -> None:
            if self.checked:
                _ = self.x[stage], self.weight[stage, warpgroup]
                plgpu.commit_smem()

        def release(n: Int[Array, ""]) -> None:
            stage = lax.rem(n, jnp.int32(STAGES))
            read(stage)
            plgpu.barrier_arrive(self.free.at[stage])

        def multiply(acc: Ref) -> Float[Array, "64 columns"]:
            def step(k: Int[Array, ""]) -> None:
                stage = lax.rem(first + k, jnp.int32(STAGES))
                plgpu.barrier_wait(self.full.at[stage])
                read(stage)
                plgpu.wgmma(acc, self.x.at[stage], self.weight.at[stage, warpgroup].transpose((1, 0)))
                plgpu.wgmma_wait(1)
                pl.when(k > 0)(lambda: release(first + k - 1))

            repeat(0, self.shape.steps, step)
            result = acc[...]
            release(first + self.shape.steps - 1)
            return result

        return pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef((ROWS, self.shape.columns), jnp.float32))


def _store(
    shape: _Shape,
    tiles: Ref,
    item: Int[Array, ""],
    warpgroup: Int[Array, ""],
    product: Float[Array, "64 columns"],
    out: Ref,
    y_ref: Ref,
) -> None:
    """Store the rows of an item that are its expert's, one by one, since their number is no constant."""
    tile = shape.tile(item)
    columns = pl.ds(shape.column(item, warpgroup), shape.columns)
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # the item before this one has left ``out``
    put(out, product.astype(out.dtype))
    plgpu.commit_smem()

    def store(row: Int[Array, ""]) -> None:
        plgpu.copy_smem_to_gmem(out.at[pl.ds(row, 1)], y_ref.at[pl.ds(tiles[tile + 1] + row, 1), columns])

    repeat(tiles[tile + 2], tiles[tile + 3], store)
