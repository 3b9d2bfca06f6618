"""Convert keys and values of a cache to codes of 8 bits with a scale, and back.

A row of such a cache belongs to one token and head. It has ``head_dim`` codes, and then the four bytes of the row's
float32 scale. Number i is about code i times the scale. The scale follows from the row alone, so a token's bytes
depend on nothing but its own keys and values.

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
_LARGEST = {"int8": 127.0, "uint8": 448.0}
_LEAST_SCALE = float(np.finfo(np.float32).tiny)
"""Rows whose scale would be smaller are zeros: processors disagree about smaller numbers."""


def has_codes(dtype: DTypeLike) -> bool:
    """Whether a cache of this dtype has codes, not numbers."""
    return jnp.dtype(dtype).name in _LARGEST


def row_width(head_dim: int, dtype: DTypeLike) -> int:
    """Return the elements of a cache's row."""
    return head_dim + SCALE_BYTES if has_codes(dtype) else head_dim


def head_dim_of(row_width: int, dtype: DTypeLike) -> int:
    """Return the numbers that a cache's row of ``row_width`` elements stands for."""
    return row_width - SCALE_BYTES if has_codes(dtype) else row_width


def encode(x: Float[Array, "*rows D"], dtype: DTypeLike) -> Num[Array, "*rows W"]:
    """Return rows as a cache of ``dtype`` has them: cast, or codes and scales.

    The scale is the largest magnitude over that of the codes. A row with a NaN or an infinity has a scale that is none.
    """
    if not has_codes(dtype):
        return x.astype(dtype)
    wide = x.astype(jnp.float32)
    scale = jnp.abs(wide).max(-1, keepdims=True) * (1 / _LARGEST[jnp.dtype(dtype).name])
    scale = jnp.where(scale < _LEAST_SCALE, 0.0, scale)
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
