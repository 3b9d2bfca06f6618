"""Turn tiles of keys and values into codes of 8 bits with scales, on Hopper, as ``kv_codes.encode`` does."""

from math import gcd
from typing import Any

import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from pallas_kernels.gpu.persistent import Ref, put
from pallas_kernels.gpu.shared_memory import COPY_ALIGNMENT
from pallas_kernels.kv_codes import LARGEST, LEAST_SCALE, SCALE_BYTES

_STEP = 64
"""Most columns that are converted at a time: registers hold few."""


def code_scratch(rows: int, head_dim: int, dtype: Any) -> dict[str, Any]:
    """Return shared memory for a tile's codes, whose rows bulk copies may take, and the bits of its scales."""
    width = -(-head_dim // COPY_ALIGNMENT) * COPY_ALIGNMENT
    return {"codes": plgpu.SMEM((rows, width), dtype), "scales": plgpu.SMEM((rows,), jnp.int32)}


def encode_tile(numbers: Ref, codes: Ref, scales: Ref) -> None:
    """Put the codes of a tile's rows, which lie in shared memory, into ``codes``, and the bits of ``scales``."""
    layout, width, dtype = plgpu.Layout.WGMMA, numbers.shape[1], jnp.dtype(codes.dtype)
    step = gcd(width, _STEP)
    columns = [slice(first, first + step) for first in range(0, width, step)]

    def wide(these: slice) -> Any:
        return plgpu.load(numbers.at[:, these], layout=layout, optimized=False).astype(jnp.float32)

    largest = jnp.abs(wide(columns[0])).max(axis=1)
    for these in columns[1:]:
        largest = jnp.maximum(largest, jnp.abs(wide(these)).max(axis=1))
    scale = largest * (1 / LARGEST[dtype.name])
    scale = jnp.where(scale < LEAST_SCALE, jnp.zeros_like(scale), scale)
    put(scales, lax.bitcast_convert_type(scale, jnp.int32))
    is_zero = scale == 0
    factor = 1 / jnp.where(is_zero, jnp.ones_like(scale), scale)
    for these in columns:
        x = wide(these)
        steps = x * lax.broadcast_in_dim(factor, x.shape, (0,))
        steps = jnp.where(lax.broadcast_in_dim(is_zero, x.shape, (0,)), jnp.zeros_like(steps), steps)
        if dtype == jnp.int8:
            found = lax.round(steps, lax.RoundingMethod.TO_NEAREST_EVEN).astype(jnp.int32).astype(jnp.int8)
        else:
            found = lax.bitcast_convert_type(steps.astype(jnp.float8_e4m3fn), dtype)
        put(codes.at[:, these], found)
    plgpu.commit_smem()


def write_scale(
    bits: Int[Array, ""],
    rows: Ref,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    head: Int[Array, ""],
    offset: Int[Array, ""],
) -> None:
    """Write the bytes of a token's scale to their places, apart, in a layer of a block: ``rows`` of codes.

    ``head``: among the key and value heads of the layer.
    """
    first = 2 * kv_heads * block_size * head_dim + head * (SCALE_BYTES * block_size) + offset
    for i in range(SCALE_BYTES):
        at, byte = first + i * block_size, (bits >> (8 * i)) & 255
        rows[lax.div(at, jnp.int32(head_dim)), lax.rem(at, jnp.int32(head_dim))] = byte.astype(rows.dtype)
