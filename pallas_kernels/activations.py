"""Activations of an MLP, between its two products: from a float32 product, element by element.

All are computed in float32 and rounded once. What is minus infinity gives NaN, as minus infinity times 0 does, but zero
with the two of ReLU.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

_GELU_TANH = 1.5957691216057308, 0.044715
"""2 sqrt(2 / pi), and the factor of x^3."""
_ALPHA, _LIMIT = 1.702, 7.0


def _gelu_tanh(x: Float[Array, "T F"]) -> Float[Array, "T F"]:
    """x (1 + tanh(u)) / 2, as a sigmoid of 2 u, which does not cancel where tanh(u) is near -1."""
    twice, cubic = _GELU_TANH
    return x * jax.nn.sigmoid(twice * x * (1 + cubic * x * x))


def _swiglu_clipped(gate: Float[Array, "T F"], up: Float[Array, "T F"]) -> Float[Array, "T F"]:
    gate = jnp.minimum(gate, _LIMIT)
    return gate * jax.nn.sigmoid(_ALPHA * gate) * (jnp.clip(up, -_LIMIT, _LIMIT) + 1)


def _times_up(activation: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array, jax.Array], jax.Array]:
    return lambda gate, up: activation(gate) * up


def _gelu(x: Float[Array, "T F"]) -> Float[Array, "T F"]:
    return jax.nn.gelu(x, approximate=False)


ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
    "silu": jax.nn.silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}
"""Activations by the names that ``activate`` takes.

relu2: relu squared (Primer, arXiv 2109.08668). silu: x * sigmoid(x). gelu: x times the normal distribution's share
below x (arXiv 1606.08415). gelu_tanh: that paper's approximation by a tanh.
"""
GATED: Mapping[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    **{name: _times_up(ACTIVATIONS[name]) for name in ("silu", "gelu", "gelu_tanh")},
    "swiglu_clipped": _swiglu_clipped,
}
"""Gated activations by the names that ``gated`` takes: activation(gate) * up (GLU: arXiv 2002.05202).

swiglu_clipped, of gpt-oss: gate * sigmoid(1.702 gate) * (up + 1), where gate is at most 7 and up between -7 and 7.
"""


def check_activation(activation: str, known: Mapping[str, object]) -> None:
    """Raise ValueError for a name that is not in ``ACTIVATIONS``, or ``GATED``."""
    if activation not in known:
        raise ValueError(f"activation is {activation!r}, none of {', '.join(known)}")


def activate_ref(
    x: Float[Array, "T F"], num_tokens: Int[Array, ""], *, activation: str, dtype: DTypeLike
) -> Float[Array, "T F"]:
    """Return activation(x) of float32 rows, rounded to ``dtype`` once; raises ValueError for unknown names.

    Rows from ``num_tokens`` on hold nothing to read.
    """
    del num_tokens  # XLA's program has one shape
    check_activation(activation, ACTIVATIONS)
    return ACTIVATIONS[activation](x).astype(dtype)


def gated_ref(
    gate_up: Float[Array, "T FF"], num_tokens: Int[Array, ""], *, activation: str, dtype: DTypeLike
) -> Float[Array, "T F"]:
    """Return the gated ``activation`` of float32 rows [gate, up], rounded to ``dtype`` once; raises ValueError for
    unknown names.

    Rows from ``num_tokens`` on hold nothing to read.
    """
    del num_tokens
    check_activation(activation, GATED)
    # XLA on CPU would round every operation of a 16-bit activation on its own, which takes twice as long.
    half = gate_up.shape[1] // 2
    return GATED[activation](gate_up[:, :half], gate_up[:, half:]).astype(dtype)
