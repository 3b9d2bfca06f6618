"""Blocks of the KV cache, over all layers, to and from a contiguous staging buffer."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, Num

from pallas_kernels.gpu.persistent import CTA, H200_MULTIPROCESSORS, CtaItems, Interpret, Ref, copy, repeat, stream
from pallas_kernels.gpu.shared_memory import aligned_rows
from pallas_kernels.kv_codes import has_codes

PIECE_BYTES = 32 * 1024
"""Most bytes of a bulk copy."""
REGISTER_BYTES = 16 * 1024
"""Most bytes that go through the registers of a CTA at once."""
_WARPGROUP = 128
STAGES = 6
"""Pieces that a CTA has in flight."""
_MAX_BOX = 256
"""Most rows of a bulk copy, and most elements of a row."""
_DTYPES = ("bfloat16", "float16", "int8", "uint8")
_COPY_UNIT = 16
"""Bytes of which a bulk copy's rows are a multiple."""


def supports(*, numbers: int, head_dim: int, dtype: str, bulk: bool = True) -> str | None:
    """Return why the kernels cannot copy blocks of ``numbers`` elements, or None if they can."""
    if dtype not in _DTYPES:
        return f"blocks are {dtype}, not {' or '.join(_DTYPES)}"
    if not bulk:
        return f"blocks of {numbers} numbers are not multiples of {_WARPGROUP}" if numbers % _WARPGROUP else None
    if has_codes(dtype):
        return f"blocks of {numbers} bytes are not multiples of {_COPY_UNIT}" if numbers % _COPY_UNIT else None
    row_bytes = head_dim * jnp.dtype(dtype).itemsize
    if head_dim > _MAX_BOX or row_bytes % _COPY_UNIT:
        return f"a head of {head_dim} numbers is more than {_MAX_BOX}, or no multiple of 16 bytes"
    return None


def gather_blocks(
    cache: Num[Array, "N L P K B W"],
    ids: Int[Array, "m"],
    count: Int[Array, ""],
    *,
    num_ctas: int = H200_MULTIPROCESSORS,
    bulk: bool = True,
    interpret: Interpret = None,
) -> Num[Array, "m L P K B W"]:
    """The first ``count`` of the blocks ``ids`` in order; what follows them is undefined. See gather_blocks_ref.

    Ids from ``count`` on are not read; those before it must be in [0, N). ``bulk``: use bulk copies of up to
    PIECE_BYTES through shared memory. They need Hopper and, unless blocks are codes, W * itemsize a multiple of 16
    bytes, and W at most 256. Otherwise blocks go through registers, on any GPU; then a block must have a multiple of
    128 elements. Bytes moved:
    ``count`` blocks, read and written.
    """
    rows = _rows(cache)
    plan = _Plan(rows.shape[1], rows.shape[2], rows.dtype, num_ctas, bulk, interpret)

    def body(cache_ref: Ref, ids_ref: Ref, count_ref: Ref, staging_ref: Ref, *shared: Ref) -> None:
        count = jnp.minimum(count_ref[0], len(ids))
        plan.copy(count, lambda n: cache_ref.at[ids_ref[n]], lambda n: staging_ref.at[n], *shared)

    staging = jax.ShapeDtypeStruct((len(ids), *rows.shape[1:]), rows.dtype)
    gathered = plan.kernel("gather_blocks", body, staging)(rows, ids, count.reshape(1))
    return gathered.reshape(len(ids), *cache.shape[1:])


def scatter_blocks(
    cache: Num[Array, "N L P K B W"],
    ids: Int[Array, "m"],
    staging: Num[Array, "m L P K B W"],
    count: Int[Array, ""],
    *,
    num_ctas: int = H200_MULTIPROCESSORS,
    bulk: bool = True,
    interpret: Interpret = None,
) -> Num[Array, "N L P K B W"]:
    """The cache with the first ``count`` blocks of ``staging`` as its blocks ``ids[:count]``. See scatter_blocks_ref.

    Ids and staging from ``count`` on are not read; ids before it must be distinct and in [0, N). ``bulk`` and bytes
    moved as for ``gather_blocks``.
    """
    rows: Any = jax.new_ref(_rows(cache))
    plan = _Plan(rows.shape[1], rows.shape[2], rows.dtype, num_ctas, bulk, interpret)

    def body(cache_ref: Ref, ids_ref: Ref, staging_ref: Ref, count_ref: Ref, *shared: Ref) -> None:
        count = jnp.minimum(count_ref[0], len(ids))
        plan.copy(count, lambda n: staging_ref.at[n], lambda n: cache_ref.at[ids_ref[n]], *shared)

    plan.kernel("scatter_blocks", body, ())(rows, ids, _rows(staging), count.reshape(1))
    return jax.freeze(rows).reshape(cache.shape)


def _rows(blocks: Num[Array, "n L P K B W"]) -> Num[Array, "n R width"]:
    """Return blocks as rows: of a head, or of a width that bulk copies take where blocks are codes, in any order."""
    width, numbers = blocks.shape[-1], math.prod(blocks.shape[1:])
    if has_codes(blocks.dtype):
        wide = (n for n in range(_MAX_BOX, 0, -_COPY_UNIT) if numbers % n == 0)
        width = next(wide, width)
    return blocks.reshape(len(blocks), -1, width)


@dataclass(frozen=True)
class _Plan:
    """The pieces of blocks of ``rows`` rows of ``width`` elements, and the grid that copies them."""

    rows: int
    width: int
    dtype: Any
    num_ctas: int
    bulk: bool
    interpret: Interpret

    @property
    def piece_rows(self) -> int:
        """The most that divide a block and may be copied at once."""
        most = (PIECE_BYTES if self.bulk else REGISTER_BYTES) // (self.width * self.dtype.itemsize)
        fit = (n for n in range(min(_MAX_BOX, max(1, most)), 0, -1) if self.rows % n == 0)
        return next(fit)

    @property
    def scratch(self) -> list[Any]:
        """Stages of a piece, each padded with rows so that the next stage is aligned."""
        rows = aligned_rows(self.piece_rows, self.width * self.dtype.itemsize)
        return [plgpu.SMEM((STAGES, rows, self.width), self.dtype), plgpu.Barrier(num_barriers=STAGES)]

    def copy(
        self,
        count: Int[Array, ""],
        source: Callable[[jax.Array], Ref],
        destination: Callable[[jax.Array], Ref],
        *shared: Ref,
    ) -> None:
        """Copy block n from ``source(n)`` to ``destination(n)`` for each n below ``count``."""
        rows, per_block = self.piece_rows, jnp.int32(self.rows // self.piece_rows)

        def piece(block: Callable[[jax.Array], Ref], item: Int[Array, ""]) -> Ref:
            return block(lax.div(item, per_block)).at[pl.ds(lax.rem(item, per_block) * rows, rows)]

        items = CtaItems(count * per_block, self.num_ctas)
        if self.bulk:
            stream(items, lambda item: piece(source, item), lambda item: piece(destination, item), *shared, rows=rows)
        else:
            repeat(0, items.mine, lambda i: copy(piece(source, items[i]), piece(destination, items[i])))

    def kernel(self, name: str, body: Callable[..., None], out_type: Any) -> Callable[..., jax.Array]:
        kernel: Callable[..., jax.Array] = plgpu.kernel(
            body,
            out_type=out_type,
            scratch_types=self.scratch if self.bulk else (),
            grid=(self.num_ctas,),
            grid_names=(CTA,),
            compiler_params=plgpu.CompilerParams(),
            interpret=self.interpret,
            kernel_name=name,
        )
        return kernel
