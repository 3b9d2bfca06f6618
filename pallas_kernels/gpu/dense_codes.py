"""How the codes of a stage become numbers for a dense product on Hopper, before both warpgroups multiply with them.

Each of them converts every other piece of CODED_ROWS rows in its registers, and writes the numbers to one of WIDE tiles
of shared memory. Neither still multiplies with what was there. Both have arrived at ``ready`` for the tile between, and
before that each waits for its sums with the tile before.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from pallas_kernels.gpu.code_support import CODED_ROWS, WIDE
from pallas_kernels.gpu.codes import Codes
from pallas_kernels.gpu.dense_support import COMPUTE
from pallas_kernels.gpu.persistent import Ref, put


@dataclass(frozen=True)
class Converter:
    """Where a thread block's codes are, and where their numbers go."""

    codes: Codes
    stages: Ref
    """[stages, rows, inputs] of codes."""
    wide: Ref
    """[WIDE, rows, inputs] of numbers."""
    ready: Ref
    """Barriers at which both warpgroups arrive when they have written their numbers."""
    scales: Ref = None
    """[stages, groups, rows]; None: no scale multiplies the codes."""

    def tile(self, n: Int[Array, ""]) -> Ref:
        """Return the numbers of stage number n, [rows, inputs]."""
        return self.wide.at[lax.rem(n, jnp.int32(WIDE))]

    def convert(
        self,
        n: Int[Array, ""],
        stage: Int[Array, ""],
        rows: int,
        warpgroup: Int[Array, ""],
        *,
        before: Callable[[], None],
    ) -> None:
        """Write the numbers of a stage's first ``rows`` rows. ``before``: waits for this warpgroup's sums with the
        numbers before them."""
        pieces = rows // CODED_ROWS
        for first in range(0, pieces, COMPUTE):
            piece = first + warpgroup
            pl.when(piece < pieces)(partial(self._piece, n, stage, piece))
        before()
        plgpu.commit_smem()
        plgpu.barrier_arrive(self.ready.at[0])
        plgpu.barrier_wait(self.ready.at[0])

    def _piece(self, n: Int[Array, ""], stage: Int[Array, ""], piece: Int[Array, ""]) -> None:
        rows = pl.ds(pl.multiple_of(piece * CODED_ROWS, CODED_ROWS), CODED_ROWS)
        scales: tuple[Any, ...] = () if self.scales is None else (self.scales.at[stage, :, rows],)
        put(self.tile(n).at[rows], self.codes.numbers(self.stages[stage, rows], *scales))
