"""Convert keys and values of a cache to codes of 8 bits with a scale, and back.

A row of such a cache belongs to one token and head. It has ``head_dim`` codes, and then the four bytes of the row's
float32 scale. Number i is about code i times the scale. The scale follows from the row alone, so a token's bytes
depend on nothing but its own keys and values.

Kernels of GPUs have the same bytes in another order, because bulk copies take rows of a multiple of 16 bytes. There
the codes of all parts, heads and tokens of a block's layer come first. Then come their scales, apart: of each part and
head the first byte of each token's scale, the second of each, and so on. The array has the same shape.

The cache's dtype says what codes are. int8: integers from -127 to 127. uint8: the bits of float8_e4m3fn. They stay in
integers because XLA may rewrite numbers of 8 bits that it copies.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Num

SCALE_BYTES = 4
CODE_DTYPES = {"int8": jnp.int8, "fp8": jnp.uint8}
"""Dtypes of a cache's array, by what its codes are."""
LARGEST = {"int8": 127.0, "uint8": 448.0}
LEAST_SCALE = float(np.finfo(np.float32).tiny)
"""Rows whose scale would be smaller are zeros: processors disagree about smaller numbers."""


def has_codes(dtype: DTypeLike) -> bool:
    """Whether a cache of this dtype has codes, not numbers."""
    return jnp.dtype(dtype).name in LARGEST


def row_width(head_dim: int, dtype: DTypeLike) -> int:
    """Return the elements of a cache's row."""
    return head_dim + SCALE_BYTES if has_codes(dtype) else head_dim


def head_dim_of(row_width: int, dtype: DTypeLike) -> int:
    """Return the numbers that a cache's row of ``row_width`` elements stands for."""
    return row_width - SCALE_BYTES if has_codes(dtype) else row_width


def apart(rows: Num[Array, "*layers P K B W"]) -> Num[Array, "*layers P K B W"]:
    """Return layers of blocks, which are rows, in the order of GPUs' kernels: codes, and scales apart."""
    layers, scales = rows.shape[:-4], rows[..., -SCALE_BYTES:].swapaxes(-1, -2)
    flat = [part.reshape(*layers, -1) for part in (rows[..., :-SCALE_BYTES], scales)]
    return jnp.concatenate(flat, axis=-1).reshape(rows.shape)


def by_rows(blocks: Num[Array, "*layers P K B W"]) -> Num[Array, "*layers P K B W"]:
    """Return layers of blocks in the order of GPUs' kernels as rows."""
    *layers, P, K, B, W = blocks.shape
    flat, numbers = blocks.reshape(*layers, -1), P * K * B * (W - SCALE_BYTES)
    codes = flat[..., :numbers].reshape(*layers, P, K, B, -1)
    scales = flat[..., numbers:].reshape(*layers, P, K, SCALE_BYTES, B)
    return jnp.concatenate([codes, scales.swapaxes(-1, -2)], axis=-1)


def code_rows(cache: Num[Array, "N L P K B W"]) -> Num[Array, "N L R D"]:
    """Return a cache with scales apart as rows of D codes: of all parts, heads and tokens. Scales follow."""
    D = head_dim_of(cache.shape[5], cache.dtype)
    return cache.reshape(*cache.shape[:2], -1, D)


def scale_rows(cache: Num[Array, "N L P K B W"]) -> Num[Array, "N L R B"]:
    """Return a cache with scales apart as rows of B bytes: the last P * K * SCALE_BYTES rows are those of scales."""
    return cache.reshape(*cache.shape[:2], -1, cache.shape[4])


def encode(x: Float[Array, "*rows D"], dtype: DTypeLike) -> Num[Array, "*rows W"]:
    """Return rows as a cache of ``dtype`` has them: cast, or codes and scales.

    The scale is the largest magnitude over that of the codes. A row with a NaN or an infinity has a scale that is none.
    """
    if not has_codes(dtype):
        return x.astype(dtype)
    wide = x.astype(jnp.float32)
    scale = jnp.abs(wide).max(-1, keepdims=True) * (1 / LARGEST[jnp.dtype(dtype).name])
    scale = jnp.where(scale < LEAST_SCALE, 0.0, scale)
    steps = wide * (1 / jnp.where(scale == 0, 1.0, scale))  # XLA would divide so in some programs and not in others
    if jnp.dtype(dtype) == jnp.int8:
        codes = jnp.round(steps).astype(jnp.int8)
    else:
        codes = lax.bitcast_convert_type(steps.astype(jnp.float8_e4m3fn), jnp.uint8)
    codes = jnp.where(scale == 0, jnp.zeros_like(codes), codes)
    return jnp.concatenate([codes, lax.bitcast_convert_type(scale[..., 0], dtype)], axis=-1)


def decode(rows: Num[Array, "*rows W"], dtype: DTypeLike) -> Float[Array, "*rows D"]:
    """Return what a cache's rows stand for: code times scale in float32, rounded to ``dtype``."""
    if not has_codes(rows.dtype):
        return rows.astype(dtype)
    codes, scale = rows[..., :-SCALE_BYTES], lax.bitcast_convert_type(rows[..., -SCALE_BYTES:], jnp.float32)
    numbers = codes if rows.dtype == jnp.int8 else lax.bitcast_convert_type(codes, jnp.float8_e4m3fn)
    return (numbers.astype(jnp.float32) * scale[..., None]).astype(dtype)
