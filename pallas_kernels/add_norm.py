"""The end of one half of a layer and the beginning of the next: parts of a product, the residual, and a norm."""

from jaxtyping import Array, Float, Int

from pallas_kernels.dense_product import sum_of_parts
from pallas_kernels.norms import layer_norm_ref, rms_norm_ref


def added(residual: Float[Array, "T D"], parts: Float[Array, "P T D"]) -> Float[Array, "T D"]:
    """Return the residual plus the sum of the parts, which is rounded to the dtype of the residual first."""
    return residual + sum_of_parts(parts).astype(residual.dtype)


def add_rms_norm_ref(
    residual: Float[Array, "T D"],
    parts: Float[Array, "P T D"],
    weight: Float[Array, "D"],
    num_tokens: Int[Array, ""],
    *,
    eps: float,
) -> tuple[Float[Array, "T D"], Float[Array, "T D"]]:
    """Return the new residual, as ``added`` says, and its norm, as ``rms_norm_ref`` says.

    ``parts``: float32 sums of a product, as of ``product_parts_ref``. Rows from ``num_tokens`` on are undefined.
    """
    total = added(residual, parts)
    return total, rms_norm_ref(total, weight, num_tokens, eps=eps)


def add_layer_norm_ref(
    residual: Float[Array, "T D"],
    parts: Float[Array, "P T D"],
    weight: Float[Array, "D"] | None,
    bias: Float[Array, "D"] | None,
    num_tokens: Int[Array, ""],
    *,
    eps: float,
) -> tuple[Float[Array, "T D"], Float[Array, "T D"]]:
    """Return the new residual and its norm, as ``layer_norm_ref`` says; see add_rms_norm_ref for the rest."""
    total = added(residual, parts)
    return total, layer_norm_ref(total, weight, bias, num_tokens, eps=eps)
