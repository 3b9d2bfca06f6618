"""Tiles of rows of one expert and of columns of its weight: how a product of experts is cut, and what fits in shared
memory."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Int

from pallas_kernels.gpu.code_support import WIDE
from pallas_kernels.gpu.codes import Codes
from pallas_kernels.gpu.expert_support import COMPUTE, ROWS, STAGES, TILE_K, columns_of, stored_columns, supports

MANY_ROWS = 64
"""Average rows of an expert from which tiles of 128 rows need fewer bytes of the L2 cache per product."""
GRANULE = 8
"""Rows of the swizzled layout. A tile begins at a multiple of it; rows of the expert before it are not stored."""
# mypy takes a method of jax without a body for an abstract one.
_SWIZZLED = (plgpu.TilingTransform((8, TILE_K)), plgpu.SwizzleTransform(128))  # type: ignore[abstract]
FIELDS = 4
"""Numbers of a tile: expert, first row, and the first and the end of what is stored of it."""


def cut(starts: Int[Array, "E1"], rows: int, of_tile: int) -> tuple[Int[Array, "n"], Int[Array, "1"]]:
    """The tiles of all experts, FIELDS numbers each, and how many there are; ``of_tile`` rows in each."""
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


@dataclass(frozen=True)
class Shape:
    """The static part of a call."""

    dtype: Any
    inputs: int
    outputs: int
    columns: int
    """Of half a tile."""
    stored: int
    """Columns of results that are stored together."""
    row_parts: int
    """Of a tile, of ROWS rows each."""
    codes: Codes | None
    """None: weights are numbers."""

    @classmethod
    def of(cls, x: jax.Array, weights: jax.Array, group: int | None, dtype: DTypeLike) -> "Shape":
        """Return the static part of a call whose results are of ``dtype``.

        Raises NotImplementedError with the reason if the kernel does not take it. XLA's loop takes it then.
        """
        _, experts, outputs, inputs = weights.shape
        name = None if x.dtype == weights.dtype else weights.dtype.name
        size = jnp.dtype(dtype).itemsize
        sizes = {"inputs": inputs, "outputs": outputs, "result_bytes": size}
        if reason := supports(**sizes, dtype=x.dtype.name, codes=name, group=group):
            raise NotImplementedError(reason)
        parts = 2 if len(x) >= MANY_ROWS * experts else 1
        return cls(
            x.dtype,
            inputs,
            outputs,
            columns_of(outputs, coded=name is not None, result_bytes=size),
            stored_columns(outputs, parts, codes=name, group=group, result_bytes=size),
            parts,
            None if name is None else Codes(weights.dtype, x.dtype, group, TILE_K),
        )

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return self.row_parts * ROWS

    @property
    def stages(self) -> int:
        return STAGES[self.row_parts - 1]

    @property
    def groups(self) -> int:
        """Tiles of the same rows. The second half of the last may lie past the outputs."""
        return -(-self.outputs // (COMPUTE * self.columns))

    @property
    def steps(self) -> int:
        return self.inputs // TILE_K

    def column(self, item: Int[Array, ""], half: Int[Array, ""] | int) -> Int[Array, ""]:
        """The first column of half an item; of a half past the outputs that of the half before."""
        column = (lax.rem(item, jnp.int32(self.groups)) * COMPUTE + half) * self.columns
        return pl.multiple_of(jnp.minimum(column, self.outputs - self.columns), 16)

    def is_past(self, item: Int[Array, ""], half: Int[Array, ""]) -> Bool[Array, ""]:
        """Whether a half lies past the outputs."""
        return (lax.rem(item, jnp.int32(self.groups)) * COMPUTE + half) * self.columns >= self.outputs

    def tile(self, item: Int[Array, ""]) -> Int[Array, ""]:
        """Return where the numbers of an item's tile begin."""
        return lax.div(item, jnp.int32(self.groups)) * FIELDS

    def scratch(self, dtype: DTypeLike) -> list[Any]:
        weights, codes = (self.stages, COMPUTE, self.columns, TILE_K), self.codes
        loads = self.row_parts + COMPUTE * (2 if codes is not None and codes.per_stage else 1)
        stored = plgpu.SMEM(weights, self.dtype, transforms=_SWIZZLED)
        scratch = [
            plgpu.SMEM((self.stages, self.row_parts, ROWS, TILE_K), self.dtype, transforms=_SWIZZLED),
            stored if codes is None else plgpu.SMEM(weights, codes.dtype, transforms=codes.transforms),
            plgpu.SMEM((COMPUTE, ROWS, self.stored), dtype),
            plgpu.Barrier(num_arrivals=loads, num_barriers=self.stages),
            plgpu.Barrier(num_arrivals=COMPUTE, num_barriers=self.stages),
        ]
        if codes is None:
            return scratch
        scratch.append(plgpu.SMEM((COMPUTE, WIDE, self.columns, TILE_K), self.dtype, transforms=_SWIZZLED))
        if codes.per_stage:
            scratch.append(plgpu.SMEM((self.stages, COMPUTE, codes.per_stage, self.columns), jnp.bfloat16))
        return scratch
