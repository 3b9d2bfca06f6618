"""Products with quantized weights on Hopper, with the codes of ``plain_codes``.

Groups lie before outputs, so that a group's scales of neighbouring outputs lie together.
"""

from typing import Any

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Shaped

from pallas_kernels.gpu.dense_product import dense_product, gated_product, product_parts
from pallas_kernels.gpu.expert_product import expert_product
from pallas_kernels.gpu.persistent import H200_MULTIPROCESSORS, Interpret
from pallas_kernels.plain_codes import plain_rows
from pallas_kernels.quantized_product import GroupedCodes


def groups_first(values: Shaped[Array, "*stack O G"]) -> Shaped[Array, "*stack G O"]:
    """Return scales as these products read them."""
    return values.swapaxes(-1, -2)


def coded_rows(weight: GroupedCodes, ids: Int[Array, "n"], *, bits: int, group: int) -> Float[Array, "n I"]:
    """Compute ``plain_codes.plain_rows``."""
    of_rows = GroupedCodes(weight.codes[ids], weight.scales[:, ids].T)
    return plain_rows(of_rows, jnp.arange(len(ids)), bits=bits, group=group)


def coded_product(
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
    **options: Any,
) -> Float[Array, "T O"]:
    """Compute ``plain_codes.plain_product``, with one order of sums for all numbers of rows.

    Scales of whole outputs multiply the sums of each part of the inputs; those of groups the codes, rounded to the
    dtype of x. NotImplementedError where ``dense_support.supports`` says why. ``options``: those of ``dense_product``.
    """
    del bits, out_features  # the dtype of the codes says the first, their shape the second
    named: dict[str, Any] = {"dtype": dtype, **_scales(weight, group), **options}
    return dense_product(x, weight.codes, layer, num_tokens, residual, **named)


def coded_parts(
    x: Float[Array, "T I"],
    weight: GroupedCodes,
    layer: Int[Array, ""],
    num_tokens: Int[Array, ""],
    *,
    group: int,
    **options: Any,
) -> Float[Array, "P T O"]:
    """Return the sums of the product by parts of the inputs; see product_parts and coded_product."""
    return product_parts(x, weight.codes, layer, num_tokens, **_scales(weight, group), **options)


def coded_gated_product(
    x: Float[Array, "T I"],
    weight: GroupedCodes,
    layer: Int[Array, ""],
    num_tokens: Int[Array, ""],
    *,
    group: int,
    activation: str,
    dtype: DTypeLike,
    **options: Any,
) -> Float[Array, "T F"]:
    """Return the gated activation of the product; see gated_product and coded_product."""
    named: dict[str, Any] = {"activation": activation, "dtype": dtype, **options}
    return gated_product(x, weight.codes, layer, num_tokens, **_scales(weight, group), **named)


def _scales(weight: GroupedCodes, group: int) -> dict[str, Any]:
    """Return how a dense product is told of scales; those of whole outputs are of no group."""
    return {"scales": _only_scales(weight), "group": group if weight.scales.shape[-2] > 1 else None}


def _only_scales(weight: GroupedCodes) -> Array:
    if weight.zeros is not None or weight.minimums is not None or weight.block_scales is not None:
        raise NotImplementedError("codes with zero points, minimums or scales of blocks")
    scales: Array = weight.scales
    return scales


def coded_expert_product(
    x: Float[Array, "S I"],
    weight: GroupedCodes,
    layer: Int[Array, ""],
    starts: Int[Array, "E1"],
    *,
    bits: int,
    group: int,
    out_features: int,
    dtype: DTypeLike = jnp.float32,
    num_ctas: int = H200_MULTIPROCESSORS,
    interpret: Interpret = None,
) -> Float[Array, "S O"]:
    """Compute ``plain_codes.plain_expert_product``, with one order of sums for all numbers of rows.

    Scales of whole outputs multiply the product; those of groups the codes, rounded to the dtype of x.
    NotImplementedError where ``expert_support.supports_codes`` says why.
    """
    del bits, out_features  # the dtype of the codes says the first, their shape the second
    of_groups = _only_scales(weight)
    options: dict[str, Any] = {"num_ctas": num_ctas, "interpret": interpret}
    if of_groups.shape[2] > 1:
        scales = of_groups.astype(jnp.bfloat16)
        return expert_product(x, weight.codes, layer, starts, scales, group=group, dtype=dtype, **options)
    y = expert_product(x, weight.codes, layer, starts, **options)
    owners = jnp.sum(jnp.arange(len(x))[:, None] >= starts[1:], axis=1)
    scales = of_groups[layer, :, 0].astype(jnp.float32)
    return (y * scales.at[owners].get(mode="clip")).astype(dtype)
