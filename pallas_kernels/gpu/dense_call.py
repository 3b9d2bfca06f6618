"""The static part of a dense product on Hopper: its tiles, and what a thread block shares."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.gpu.code_support import WIDE
from pallas_kernels.gpu.codes import Codes
from pallas_kernels.gpu.dense_support import COMPUTE, ROWS, TILE_K, Tile, Tiles, supports

# mypy takes a method of jax without a body for an abstract one.
_SWIZZLED = (plgpu.TilingTransform((8, TILE_K)), plgpu.SwizzleTransform(128))  # type: ignore[abstract]


@dataclass(frozen=True)
class Call:
    """The static part of a call."""

    tiles: Tiles
    number: Any
    """The dtype of x, and of a weight that is numbers."""
    dtype: Any
    """The dtype of the result."""
    activation: str | None
    codes: Codes | None
    """None: weights are numbers."""
    scale: Any
    """The dtype of the scales of codes, or None."""

    @classmethod
    def of(
        cls,
        x: jax.Array,
        weight: jax.Array,
        dtype: DTypeLike,
        num_ctas: int,
        tiles: tuple[Tile, ...] | None,
        activation: str | None = None,
        scales: jax.Array | None = None,
        group: int | None = None,
    ) -> "Call":
        """Return the static part of a call, with ``tiles`` or those with the fewest waves.

        Raises NotImplementedError with the reason if the kernel does not take it.
        """
        _, outputs, inputs = weight.shape
        name = (
            x.dtype.name
            if scales is not None or x.dtype == weight.dtype
            else f"{weight.dtype.name} and inputs of {x.dtype.name}"
        )
        of_codes: dict[str, Any] = {"codes": None if scales is None else weight.dtype.name, "group": group}
        if reason := supports(inputs=inputs, outputs=outputs, dtype=name, activation=activation, **of_codes):
            raise NotImplementedError(reason)
        chosen = Tiles.of(inputs, outputs, gated=activation is not None, num_ctas=num_ctas, **of_codes)
        return cls(
            chosen if tiles is None else replace(chosen, by_tier=tiles),
            x.dtype,
            jnp.dtype(dtype),
            activation,
            None if scales is None else Codes(weight.dtype, x.dtype, group, TILE_K),
            None if scales is None else scales.dtype,
        )

    @property
    def results(self) -> int:
        """Columns of the result."""
        return self.tiles.outputs // self.halves

    @property
    def halves(self) -> int:
        return 1 if self.activation is None else 2

    def scratch(self) -> dict[str, Any]:
        """Return what a thread block shares, by the names of a Walk's fields; ``full`` has barriers of each tier."""
        stages, columns, codes = self.tiles.stages, self.tiles.columns, self.codes
        stored = (self.number, _SWIZZLED) if codes is None else (codes.dtype, codes.transforms)
        shared = {
            "x": plgpu.SMEM((stages, COMPUTE, ROWS, TILE_K), self.number, transforms=_SWIZZLED),
            "weight": plgpu.SMEM((stages, columns, TILE_K), stored[0], transforms=stored[1]),
            "free": plgpu.Barrier(num_arrivals=COMPUTE, num_barriers=stages),
            "full": [
                plgpu.Barrier(num_arrivals=self.copies_of_stage(tile), num_barriers=stages)
                for tile in self.tiles.by_tier
            ],
        }
        if codes is None:
            return shared
        shared["wide"] = plgpu.SMEM((WIDE, columns, TILE_K), self.number, transforms=_SWIZZLED)
        shared["ready"] = plgpu.Barrier(num_arrivals=COMPUTE, num_barriers=1)
        if codes.per_stage:
            shared["scales"] = plgpu.SMEM((stages, codes.per_stage, columns), self.scale)
        return shared

    def copies_of_stage(self, tile: Tile) -> int:
        """Return how many copies fill a stage."""
        of_piece = 1 if self.codes is None else 1 + self.codes.per_stage
        return self.tiles.steps_of_stage(tile) * (tile.row_groups + of_piece * len(self.pieces(tile)))

    def pieces(self, tile: Tile) -> list[tuple[int, int, int]]:
        """Return a tile's pieces of the weight: their first output, counted from the tile's; their first row in a
        stage; their length. The gates and the others of one warpgroup lie next to each other."""
        if self.halves == 1:
            return [(0, 0, tile.columns)]
        length = tile.columns // (2 * tile.column_groups)
        places = [(group * length, half * self.results) for group in range(tile.column_groups) for half in range(2)]
        return [(column + first, i * length, length) for i, (column, first) in enumerate(places)]
