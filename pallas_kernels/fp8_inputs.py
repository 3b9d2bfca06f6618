"""Round the inputs of a product to FP8, by token: the activations of W8A8, as llm-compressor's FP8_DYNAMIC has them."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32

E4M3_MOST = 448.0
"""The largest number of float8_e4m3fn (arXiv 2209.05433)."""
_LARGEST = float(np.finfo(np.float32).max)


def fp8_inputs(x: Float[Array, "T I"]) -> tuple[Float[Array, "T I"], Float32[Array, "T 1"]]:
    """Return x as float8_e4m3fn times a float32 scale of each row: its greatest absolute value times 1 / E4M3_MOST.

    Numbers are rounded to the nearest, of two the even one. A row with a value that is not finite is NaN; one of zeros
    stays so. No row depends on another.
    """
    numbers = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(numbers), axis=1, keepdims=True)
    inverse = jnp.minimum(E4M3_MOST / largest, _LARGEST)  # infinite where all are zeros
    return (numbers * inverse).astype(jnp.float8_e4m3fn), largest * (1 / E4M3_MOST)
