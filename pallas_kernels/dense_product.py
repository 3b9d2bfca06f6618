"""Products with dense weights [L, O, I], stacked by layer, whose sums have one order for each weight.

The inputs are summed in ``num_parts`` parts, which the weight's shape alone fixes. The parts are added in float32, from
the first to the last. So a row's bits depend on that row and the weight, however many rows there are. In XLA's products
they also depend on the number of rows, and on what its autotuner measured.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from pallas_kernels.activations import gated_ref
from pallas_kernels.gpu.dense_support import num_parts


def product_parts_ref(
    x: Float[Array, "T I"], weight: Float[Array, "L O I"], layer: Int[Array, ""], num_tokens: Int[Array, ""]
) -> Float[Array, "P T O"]:
    """Return x @ weight[layer].T as P = num_parts(I, O) sums in float32, each over as many inputs.

    Rows from ``num_tokens`` on are undefined. float32 operands are not rounded to fewer bits.
    """
    del num_tokens  # XLA's program has one shape
    _, outputs, inputs = weight.shape
    return _sums(x, weight[layer], num_parts(inputs, outputs))


def _sums(x: Float[Array, "T I"], weight: Float[Array, "O I"], parts: int) -> Float[Array, "P T O"]:
    def part(x: jax.Array, weight: jax.Array) -> jax.Array:
        return lax.dot_general(
            x,
            weight,
            (((1,), (1,)), ((), ())),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )

    pieces = zip(jnp.split(x, parts, axis=1), jnp.split(weight, parts, axis=1), strict=True)
    return jnp.stack([part(*piece) for piece in pieces])


def sum_of_parts(parts: Float[Array, "P T O"]) -> Float[Array, "T O"]:
    """Return the sum of the parts, added from the first to the last."""
    total = parts[0]
    for i in range(1, len(parts)):
        total = total + parts[i]
    return total


def dense_product_ref(
    x: Float[Array, "T I"],
    weight: Float[Array, "L O I"],
    layer: Int[Array, ""],
    num_tokens: Int[Array, ""],
    residual: Float[Array, "T O"] | None = None,
    *,
    out_features: int,
    dtype: DTypeLike = jnp.float32,
) -> Float[Array, "T O"]:
    """Return x @ weight[layer].T for the first ``num_tokens`` rows; the others are undefined.

    It is accumulated in float32 and rounded to ``dtype``, which is float32 or the dtype of x. Then the ``residual`` of
    that dtype, if any, is added. ``out_features`` is O, which the weight's shape says too.
    """
    del out_features
    y = sum_of_parts(product_parts_ref(x, weight, layer, num_tokens)).astype(dtype)
    return y if residual is None else residual + y


def gated_product_ref(
    x: Float[Array, "T I"],
    weight: Float[Array, "L FF I"],
    layer: Int[Array, ""],
    num_tokens: Int[Array, ""],
    *,
    activation: str,
    dtype: DTypeLike,
) -> Float[Array, "T F"]:
    """Return the gated ``activation`` of x @ weight[layer].T in float32, rounded to ``dtype`` once.

    The weight's first F outputs are gates, the other F are what they multiply. A sum has one part, for any number of
    outputs. Rows from ``num_tokens`` on are undefined. ValueError for unknown activations.
    """
    gate_up = _sums(x, weight[layer], 1)[0]
    return gated_ref(gate_up, num_tokens, activation=activation, dtype=dtype)
