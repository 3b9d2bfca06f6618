"""Codes of weights on Hopper: how they lie in shared memory, and how they become numbers in registers.

Mosaic converts int8 and int4 to bfloat16 and e4m3 to float16 only, and e2m1 on no GPU before Blackwell, so that e2m1 is
made of integers.
"""

from dataclasses import dataclass
from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Shaped

from pallas_kernels.gpu.code_support import CODE_BITS, scales_of
from pallas_kernels.gpu.persistent import Ref


@dataclass(frozen=True)
class Codes:
    """Codes of a ``dtype`` that become numbers of another, ``columns`` inputs at a time. Each ``group`` of inputs has a
    scale for each output; None: they are multiplied by none."""

    dtype: Any
    numbers_dtype: Any
    group: int | None
    columns: int

    @property
    def transforms(self) -> tuple[Any, ...]:
        """Transforms of tiles in shared memory: rows are swizzled whole."""
        width = self.columns * CODE_BITS[jnp.dtype(self.dtype).name] // 8
        # mypy takes a method of jax without a body for an abstract one.
        return plgpu.TilingTransform((8, self.columns)), plgpu.SwizzleTransform(width)  # type: ignore[abstract]

    @property
    def per_stage(self) -> int:
        """Scales of an output that a tile needs."""
        return scales_of(self.group)

    def first_group(self, k: Int[Array, ""]) -> Int[Array, ""]:
        """The group of the first inputs of tile k."""
        assert self.group is not None
        return lax.div(k * self.columns, jnp.int32(self.group))

    def groups_of(self, k: Int[Array, ""]) -> Any:
        """The groups of the inputs of tile k."""
        return pl.ds(self.first_group(k), self.per_stage)

    def numbers(self, codes: Shaped[Array, "O I"], scales: Ref = None) -> Float[Array, "O I"]:
        """The numbers of a tile; ``scales`` [groups, O] of its groups in shared memory."""
        numbers = self._plain(codes)
        if scales is None:
            return numbers
        assert self.group is not None

        def of_group(i: int) -> Float[Array, "O I"]:
            return lax.broadcast_in_dim(scales[i].astype(self.numbers_dtype), numbers.shape, (0,))

        factor = of_group(0)
        for i in range(1, self.per_stage):
            inputs = lax.broadcasted_iota(jnp.int32, numbers.shape, 1)
            factor = jnp.where(inputs >= i * self.group, of_group(i), factor)
        return numbers * factor

    def _plain(self, codes: Shaped[Array, "O I"]) -> Float[Array, "O I"]:
        if self.dtype == jnp.float8_e4m3fn:
            return codes.astype(jnp.float16).astype(self.numbers_dtype)
        if self.dtype == jnp.uint4:
            code = codes.astype(jnp.int8).astype(jnp.int32)
            magnitude = code & 7
            twice = magnitude + jnp.maximum(magnitude - 4, 0) + 2 * jnp.maximum(magnitude - 6, 0)
            signed = jnp.where((code & 8) != 0, -twice, twice)
            return (signed.astype(jnp.float32) * 0.5).astype(self.numbers_dtype)
        return codes.astype(self.numbers_dtype)
