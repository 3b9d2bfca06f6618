"""Products with weights that were laid out for the processor once, when they were loaded.

``y = x @ weight.T`` reads a weight many outputs at a time. Packed, the PANEL outputs that are computed together lie
next to each other for each input. So a kernel streams through the weight from its beginning to its end. float32 and the
16-bit types share the layout in units of 32 bits (one or two neighbouring inputs).
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

PANEL = 64
"""Outputs that lie together."""


@jax.jit
def pack(weight: Float[Array, "*stack O I"]) -> Float[Array, "*stack P U N E"]:
    """Return the same numbers, packed: P = ceil(O / N) panels of N = PANEL outputs, U = ceil(I / E) units of E inputs.

    E = 2 for 16-bit types and 1 for float32. Outputs and inputs that fill up the last panel and unit are zeros. Takes
    memory for the weight and the result, no more.
    """
    *stack, O, I = weight.shape  # noqa: E741
    E = 4 // weight.dtype.itemsize
    P, U = -(-O // PANEL), -(-I // E)
    padding = [(0, 0)] * len(stack) + [(0, P * PANEL - O), (0, U * E - I)]
    return jnp.pad(weight, padding).reshape(*stack, P, PANEL, U, E).swapaxes(-3, -2)


def rows(packed: Float[Array, "P U N E"], ids: Int[Array, "n"]) -> Float[Array, "n J"]:
    """Rows ``ids`` of the weight that was packed (of an embedding table); J = U * E: I, or I + 1 with a zero."""
    gathered = packed[ids // PANEL, :, ids % PANEL]
    return gathered.reshape(len(ids), -1)


def packed_product_ref(
    x: Float[Array, "T I"],
    packed: Float[Array, "L P U N E"],
    layer: Int[Array, ""],
    num_tokens: Int[Array, ""],
    residual: Float[Array, "T O"] | None = None,
    *,
    out_features: int,
    dtype: DTypeLike = jnp.float32,
) -> Float[Array, "T O"]:
    """Return x @ weight.T for the weight [out_features, I] that was packed as ``layer``.

    It is accumulated in float32 and rounded to ``dtype``, which is float32 or the dtype of x. Then the ``residual`` of
    that dtype, if any, is added. Rows from ``num_tokens`` on are undefined. float32 operands are not rounded to fewer
    bits. The whole stack is passed because a slice of it would be a copy.
    """
    del num_tokens  # XLA's program has one shape
    T, I = x.shape  # noqa: E741
    _, _, U, _, E = packed.shape
    units = jnp.pad(x, ((0, 0), (0, U * E - I))).reshape(T, U, E)
    y = lax.dot_general(
        units,
        packed[layer],
        (((1, 2), (1, 3)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    y = y.reshape(T, -1)[:, :out_features].astype(dtype)
    return y if residual is None else residual + y
