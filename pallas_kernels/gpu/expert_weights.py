"""Products with experts' quantized weights on Hopper, with the codes of ``plain_codes``.

Their scales are [L, E, G, O], so that the scales of a tile's outputs lie together.
"""

from typing import Any

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Shaped

from pallas_kernels.gpu.expert_product import expert_product
from pallas_kernels.gpu.persistent import H200_MULTIPROCESSORS, Interpret
from pallas_kernels.quantized_product import GroupedCodes


def groups_of_experts(values: Shaped[Array, "*stack O G"]) -> Shaped[Array, "*groups"]:
    """Return scales as the product reads them: those of experts [L, E, G, O], others as they are."""
    return values.swapaxes(-1, -2) if values.ndim == 4 else values


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
    if weight.zeros is not None or weight.minimums is not None or weight.block_scales is not None:
        raise NotImplementedError("codes with zero points, minimums or scales of blocks")
    options: dict[str, Any] = {"num_ctas": num_ctas, "interpret": interpret}
    if weight.scales.shape[2] > 1:
        scales = weight.scales.astype(jnp.bfloat16)
        return expert_product(x, weight.codes, layer, starts, scales, group=group, dtype=dtype, **options)
    y = expert_product(x, weight.codes, layer, starts, **options)
    owners = jnp.sum(jnp.arange(len(x))[:, None] >= starts[1:], axis=1)
    scales = weight.scales[layer, :, 0].astype(jnp.float32)
    return (y * scales.at[owners].get(mode="clip")).astype(dtype)
