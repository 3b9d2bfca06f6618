"""Norms over the last axis: what a layer does to its input before each product.

A row's bits depend on that row alone, however many there are, in every kernel and its twin.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int


def row_sum(x: Float[Array, "*rows D"]) -> Float[Array, "*rows 1"]:
    """Sum over the last axis, with the same bits for a row however many rows there are.

    On a CPU XLA takes one of several ways to sum, by the size of the array, and each has another order. So there the
    order, pairs of halves, is part of the program.
    """
    return lax.platform_dependent(x, cpu=_sum_by_halves, default=_sum)


def row_mean(x: Float[Array, "*rows D"]) -> Float[Array, "*rows 1"]:
    """The mean over the last axis, by ``row_sum``."""
    return row_sum(x) / x.shape[-1]


def _sum(x: Float[Array, "*rows D"]) -> Float[Array, "*rows 1"]:
    return jnp.sum(x, axis=-1, keepdims=True)


def _sum_by_halves(x: Float[Array, "*rows D"]) -> Float[Array, "*rows 1"]:
    while (width := x.shape[-1]) > 1:
        half = width // 2
        sums = x[..., :half] + x[..., width - half :]
        x = sums if width % 2 == 0 else jnp.concatenate([sums, x[..., half : half + 1]], axis=-1)
    return x


def rms_norm_ref(
    x: Float[Array, "T D"], weight: Float[Array, "D"], num_tokens: Int[Array, ""], *, eps: float
) -> Float[Array, "T D"]:
    """Return x / rms(x) in float32, times the weight. Raises ValueError for a weight of neither x's dtype nor float32.

    A weight of x's dtype multiplies the norm after it is rounded to that dtype (as in Llama). A float32 weight
    multiplies before anything is rounded (as in Gemma and OLMo 2). Rows from ``num_tokens`` on are undefined.
    """
    del num_tokens  # XLA's program has one shape
    if weight.dtype not in (x.dtype, jnp.float32):
        raise ValueError(f"a norm's weight is {weight.dtype}, neither {x.dtype} nor float32")
    wide = x.astype(jnp.float32)
    scale = lax.rsqrt(row_mean(wide * wide) + eps)
    return (weight * (wide * scale).astype(weight.dtype)).astype(x.dtype)


def layer_norm_ref(
    x: Float[Array, "T D"],
    weight: Float[Array, "D"] | None,
    bias: Float[Array, "D"] | None,
    num_tokens: Int[Array, ""],
    *,
    eps: float,
) -> Float[Array, "T D"]:
    """(x - mean) / std * weight + bias in float32; without the weight or the bias that is None.

    Rows from ``num_tokens`` on hold nothing to read.
    """
    del num_tokens
    wide = x.astype(jnp.float32)
    wide -= row_mean(wide)
    wide *= lax.rsqrt(row_mean(wide * wide) + eps)
    if weight is not None:
        wide *= weight.astype(jnp.float32)
    if bias is not None:
        wide += bias.astype(jnp.float32)
    return wide.astype(x.dtype)
