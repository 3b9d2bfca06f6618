"""Products with weights of 2 to 8 bits whose codes are plain arrays [outputs, inputs].

XLA on GPUs reads the codes inside its products, so no matrix of numbers is written.

The weights are those of ``quantized_product``. Here the dtype of the codes says what they mean. int8 and int4 are codes
less the middle code, float8_e4m3fn is numbers, and uint4 is numbers in e2m1.

Scales of whole outputs multiply the product. Scales of groups multiply the codes, which XLA does inside the product if
it is compiled with COMPILER_OPTIONS. Zero points are a product of their own, with sums of the inputs:
``x @ (codes * scale) - sums(x) @ (zero * scale)``. So are minimums. XLA still writes a matrix before two products: of
e2m1, in int8, and of e4m3 on GPUs without FP8, in the dtype of the inputs.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Int8, Shaped, UInt8

from pallas_kernels.expert_product import GPU_TILE_ROWS
from pallas_kernels.quantized_product import GroupedCodes, default_zero, product_of_experts

COMPILER_OPTIONS = (("xla_gpu_experimental_enable_subchannel_dequantisation_fusion", "True"),)
"""XLA's, for programs of these products: without them it writes a matrix of numbers before a product with groups."""


@partial(jax.jit, static_argnames=("bits", "floats"))
def plain_codes(codes: UInt8[Array, "*stack O I"], *, bits: int, floats: bool = False) -> Shaped[Array, "*stack O I"]:
    """Return the same codes in the dtype that says what they mean.

    ``floats``: they are e4m3, of 8 bits, or e2m1, of 4.
    """
    if floats:
        return codes.astype(jnp.uint4) if bits == 4 else lax.bitcast_convert_type(codes, jnp.float8_e4m3fn)
    return (codes.astype(jnp.int16) - default_zero(bits)).astype(jnp.int4 if bits == 4 else jnp.int8)


def plain_groups(values: Shaped[Array, "*stack O G"]) -> Shaped[Array, "*stack O G"]:
    """Return scales or zero points of G groups as they are."""
    return values


def plain_rows(weight: GroupedCodes, ids: Int[Array, "n"], *, bits: int, group: int) -> Float[Array, "n I"]:
    """Return rows ``ids`` of the weight, an embedding table, in float32."""
    of_rows = weight.only(ids)
    numbers, I = _numbers(of_rows.codes, jnp.float32), of_rows.codes.shape[1]  # noqa: E741
    scales, minimums = of_rows.factors(group, -1)
    if minimums is not None:
        numbers += default_zero(bits)
    if weight.zeros is not None:
        numbers -= _by_input(_offsets(of_rows.zeros, bits), group, I)
    numbers *= _by_input(scales.astype(jnp.float32), group, I)
    return numbers if minimums is None else numbers + _by_input(minimums.astype(jnp.float32), group, I)


def plain_product(
    x: Float[Array, "T I"],
    weight: GroupedCodes,
    layer: Int[Array, ""],
    num_tokens: Int[Array, ""],
    residual: Float[Array, "T O"] | None = None,
    *,
    bits: int,
    group: int,
    out_features: int,
    dtype: DTypeLike = jnp.float32,
) -> Float[Array, "T O"]:
    """Compute ``quantized_product_ref`` with exact inputs. Scales of groups, and codes times them, are rounded to the
    dtype of x."""
    del num_tokens, out_features  # XLA's program has one shape, and no output is padded
    at = weight.only(layer)
    numbers, (of_groups, minimums) = _numbers(at.codes, x.dtype), at.factors(group, -1)
    T, I = x.shape  # noqa: E741
    G = of_groups.shape[1]
    after = G == 1
    y = _dot(x, numbers if after else numbers * _by_input(of_groups.astype(x.dtype), group, I))
    scales = (of_groups if after else of_groups.astype(x.dtype)).astype(jnp.float32)
    y = y * scales[:, 0] if after else y
    if at.zeros is not None or minimums is not None:
        sums = jnp.pad(x.astype(jnp.float32), ((0, 0), (0, G * group - I))).reshape(T, G, group).sum(axis=-1)
        lowest = scales * (default_zero(bits) if minimums is not None else -_offsets(at.zeros, bits))
        y += _dot(sums, lowest if minimums is None else lowest + minimums.astype(jnp.float32))
    y = y.astype(dtype)
    return y if residual is None else residual + y


def plain_expert_product(
    x: Float[Array, "S I"],
    weight: GroupedCodes,
    layer: Int[Array, ""],
    starts: Int[Array, "E1"],
    *,
    bits: int,
    group: int,
    out_features: int,
    dtype: DTypeLike = jnp.float32,
) -> Float[Array, "S O"]:
    """Compute ``plain_product`` for each row of ``x`` and the weight of its expert.

    As in ``expert_product_ref``, expert e has the rows from ``starts[e]`` to ``starts[e + 1]``.
    """
    options: dict[str, Any] = {"bits": bits, "group": group, "out_features": out_features, "dtype": dtype}
    product = partial(plain_product, **options)
    return product_of_experts(product, x, weight, layer, starts, GPU_TILE_ROWS)


def _dot(a: Float[Array, "T I"], b: Float[Array, "O I"]) -> Float[Array, "T O"]:
    return lax.dot_general(
        a, b, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )


def _numbers(codes: Shaped[Array, "*shape"], dtype: DTypeLike) -> Float[Array, "*shape"]:
    """Return the numbers of codes before scales and zero points; each dtype holds them.

    Via float32, XLA would write a matrix of them.
    """
    if codes.dtype == jnp.uint4:
        return _twice_e2m1(codes).astype(dtype) * jnp.asarray(0.5, dtype)
    return codes.astype(dtype)


def _twice_e2m1(codes: Shaped[Array, "*shape"]) -> Int8[Array, "*shape"]:
    """Twice the numbers, which are integers: XLA writes a matrix of them before a product, half as large as numbers."""
    code = codes.astype(jnp.int8)
    magnitude = code & 7
    twice = magnitude + jnp.maximum(magnitude - 4, 0) + 2 * jnp.maximum(magnitude - 6, 0)
    return jnp.where(code >= 8, -twice, twice)


def _offsets(zeros: UInt8[Array, "*shape"], bits: int) -> Float[Array, "*shape"]:
    """Zero points as the codes have them."""
    return zeros.astype(jnp.float32) - default_zero(bits)


def _by_input(values: Float[Array, "O G"], group: int, inputs: int) -> Float[Array, "O I"]:
    """Give each input its group's value; the last group may be shorter."""
    return jnp.repeat(values, group, axis=-1)[..., :inputs]
