"""The activation of Llama's MLP, between its two products."""

import jax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int


def gated_silu_ref(
    gate_up: Float[Array, "T FF"], num_tokens: Int[Array, ""], *, dtype: DTypeLike
) -> Float[Array, "T F"]:
    """silu(gate) * up of rows [gate, up], computed in float32 and rounded to ``dtype`` once (GLU: arXiv 2002.05202).

    Rows from ``num_tokens`` on hold nothing to read.
    """
    del num_tokens  # XLA's program has one shape
    # XLA on CPU would round every operation of a 16-bit activation on its own, which takes twice as long.
    half = gate_up.shape[1] // 2
    return (jax.nn.silu(gate_up[:, :half]) * gate_up[:, half:]).astype(dtype)
