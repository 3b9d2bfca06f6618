"""Blocks of the KV cache, over all layers, to and from a contiguous staging buffer, by bulk copies."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.gpu.persistent import CTA, H200_MULTIPROCESSORS, Interpret, Items, Ref, stream

PIECE_BYTES = 32 * 1024
"""Most bytes of a bulk copy."""
STAGES = 6
"""Pieces that a CTA has in flight."""
_MAX_BOX = 256
"""Most rows of a bulk copy, and most elements of a row."""


def gather_blocks(
    cache: Float[Array, "N L 2 K B D"],
    ids: Int[Array, "m"],
    count: Int[Array, ""],
    *,
    num_ctas: int = H200_MULTIPROCESSORS,
    interpret: Interpret = None,
) -> Float[Array, "m L 2 K B D"]:
    """The first ``count`` of the blocks ``ids`` in order; what follows them is undefined. See gather_blocks_ref.

    Ids from ``count`` on are not read; those before it must be in [0, N). D * itemsize must be a multiple of 16 bytes,
    D at most 256. Bytes moved: ``count`` blocks, read and written, in pieces of at most PIECE_BYTES.
    """
    rows = _rows(cache)

    def body(cache_ref: Ref, ids_ref: Ref, count_ref: Ref, staging_ref: Ref, stages: Ref, loaded: Ref) -> None:
        _copy(
            count_ref[0],
            staging_ref.shape,
            num_ctas,
            lambda index: cache_ref.at[ids_ref[index]],
            lambda index: staging_ref.at[index],
            stages,
            loaded,
        )

    staging = jax.ShapeDtypeStruct((len(ids), *rows.shape[1:]), rows.dtype)
    kernel = _kernel("gather_blocks", body, staging, rows, num_ctas, interpret)
    return kernel(rows, ids, count.reshape(1)).reshape(len(ids), *cache.shape[1:])


def scatter_blocks(
    cache: Float[Array, "N L 2 K B D"],
    ids: Int[Array, "m"],
    staging: Float[Array, "m L 2 K B D"],
    count: Int[Array, ""],
    *,
    num_ctas: int = H200_MULTIPROCESSORS,
    interpret: Interpret = None,
) -> Float[Array, "N L 2 K B D"]:
    """The cache with the first ``count`` blocks of ``staging`` as its blocks ``ids[:count]``. See scatter_blocks_ref.

    Ids and staging from ``count`` on are not read; ids before it must be distinct and in [0, N). D as for
    ``gather_blocks``. Bytes moved: ``count`` blocks, read and written, in pieces of at most PIECE_BYTES.
    """
    ref = jax.new_ref(_rows(cache))

    def body(cache_ref: Ref, ids_ref: Ref, staging_ref: Ref, count_ref: Ref, stages: Ref, loaded: Ref) -> None:
        _copy(
            count_ref[0],
            staging_ref.shape,
            num_ctas,
            lambda index: staging_ref.at[index],
            lambda index: cache_ref.at[ids_ref[index]],
            stages,
            loaded,
        )

    _kernel("scatter_blocks", body, (), ref, num_ctas, interpret)(ref, ids, _rows(staging), count.reshape(1))
    return jax.freeze(ref).reshape(cache.shape)


def _rows(blocks: Float[Array, "n L 2 K B D"]) -> Float[Array, "n R D"]:
    return blocks.reshape(len(blocks), -1, blocks.shape[-1])


def _piece_rows(rows: int, row_bytes: int) -> int:
    """Rows of a piece: the most that divide a block, within what a bulk copy may have."""
    most = min(_MAX_BOX, max(1, PIECE_BYTES // row_bytes))
    return next(n for n in range(most, 0, -1) if rows % n == 0)


def _copy(
    count: Int[Array, ""],
    shape: Sequence[int],
    num_ctas: int,
    source: Callable[[jax.Array], Ref],
    destination: Callable[[jax.Array], Ref],
    stages: Ref,
    loaded: Ref,
) -> None:
    """Copy the first ``count`` of m blocks piece by piece; ``shape`` is that of the staging buffer, [m, rows, D]."""
    piece_rows = stages.shape[1]
    per_block = jnp.int32(shape[1] // piece_rows)

    def piece_of(block: Callable[[jax.Array], Ref]) -> Callable[[jax.Array], Ref]:
        return lambda item: block(lax.div(item, per_block)).at[pl.ds(lax.rem(item, per_block) * piece_rows, piece_rows)]

    items = Items(jnp.minimum(count, shape[0]) * per_block, num_ctas)
    stream(items, piece_of(source), piece_of(destination), stages, loaded)


def _kernel(
    name: str, body: Callable[..., None], out_type: Any, rows: Any, num_ctas: int, interpret: Interpret
) -> Callable[..., jax.Array]:
    _, R, D = rows.shape
    stage = (STAGES, _piece_rows(R, D * rows.dtype.itemsize), D)
    kernel: Callable[..., jax.Array] = plgpu.kernel(
        body,
        out_type=out_type,
        scratch_types=[plgpu.SMEM(stage, rows.dtype), plgpu.Barrier(num_barriers=STAGES)],
        grid=(num_ctas,),
        grid_names=(CTA,),
        compiler_params=plgpu.CompilerParams(),
        interpret=interpret,
        kernel_name=name,
    )
    return kernel
