"""Whether products and norms are right where they will run: against float64, and a row's bits in any company."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.activations import GATED
from pallas_kernels.add_norm import added
from pallas_kernels.proof import TOLERANCE, Weights, rounded

_COLUMNS = 256
"""Outputs of a product that are compared with float64."""
_COMPARED_ROWS = 64
_TOLERANCE = 1e-3
"""Largest absolute error of sums of about 1, accumulated in float32."""
_EPS = 1e-5
_USED = np.array([False, True])
"""Which of the weights of products are used."""


def prove_product(
    product: Callable[..., Any],
    *,
    inputs: int,
    outputs: int,
    dtype: str,
    budgets: Sequence[int],
    counts: Sequence[int],
    weights: Weights | None = None,
) -> None:
    """Multiply with the second of two weights, of which the first is NaN; raise AssertionError if a result is wrong.

    ``weights``: makes quantized ones; None: they are numbers. A row must have the same bits in programs of each of
    ``budgets`` rows and among each of ``counts`` rows.
    """

    def run(x: jax.Array, count: jax.Array, weight: Any) -> jax.Array:
        y: jax.Array = product(x, weight, jnp.int32(1), count, out_features=outputs, dtype=jnp.float32)
        return y

    x, (weight, numbers) = _rows(max(budgets), inputs, dtype), (weights or _plain(outputs, inputs, dtype))(_USED)
    got, columns = prove_bits("a product", run, x, (weight,), budgets, counts), _some(outputs)
    _close("a product", got[:, columns], rounded(x[:_COMPARED_ROWS], dtype) @ numbers(1, columns).T, _TOLERANCE)


def prove_gated_product(
    product: Callable[..., Any],
    *,
    inputs: int,
    outputs: int,
    activation: str,
    dtype: str,
    budgets: Sequence[int],
    counts: Sequence[int],
    weights: Weights | None = None,
) -> None:
    """Do as ``prove_product`` for a product with gates and the activation of their results."""

    def run(x: jax.Array, count: jax.Array, weight: Any) -> jax.Array:
        y: jax.Array = product(x, weight, jnp.int32(1), count, activation=activation, dtype=x.dtype)
        return y

    x, (weight, numbers) = _rows(max(budgets), inputs, dtype), (weights or _plain(outputs, inputs, dtype))(_USED)
    got, columns = prove_bits("a gated product", run, x, (weight,), budgets, counts), _some(outputs // 2)
    wide = rounded(x[:_COMPARED_ROWS], dtype)
    gate, up = (wide @ numbers(1, columns + first).T for first in (0, outputs // 2))
    wanted = GATED[activation](jnp.asarray(gate, jnp.float32), jnp.asarray(up, jnp.float32))
    _close("a gated product", got[:, columns], np.asarray(wanted, np.float64), 4 * TOLERANCE[dtype])


def prove_norm(
    norm: Callable[..., Any],
    *,
    kind: str,
    width: int,
    weight: str | None,
    bias: bool,
    dtype: str,
    budgets: Sequence[int],
    counts: Sequence[int],
) -> None:
    """Normalise rows with a norm of a ``kind``; raise AssertionError if a result is wrong, as ``prove_product`` does.

    ``weight``: the dtype of its weight, or None. ``bias``: whether it has one.
    """
    x, weights = _rows(max(budgets), width, dtype), _norm_weights(kind, width, weight, dtype, bias=bias)

    def run(x: jax.Array, count: jax.Array, *weights: Any) -> jax.Array:
        y: jax.Array = norm(x, *weights, count, eps=_EPS)
        return y

    got = prove_bits("a norm", run, x, weights, budgets, counts)
    _close("a norm", got, _norm(kind, rounded(x[:_COMPARED_ROWS], dtype), *weights), 4 * TOLERANCE[dtype])


def prove_add_norm(
    norm: Callable[..., Any],
    *,
    kind: str,
    width: int,
    weight: str | None,
    bias: bool,
    dtype: str,
    budgets: Sequence[int],
    counts: Sequence[int],
) -> None:
    """Do as ``prove_norm`` for a norm that first adds two parts of a product to its rows."""
    x, weights = _rows(max(budgets), width, dtype), _norm_weights(kind, width, weight, dtype, bias=bias)

    def parts(x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        return jnp.stack([0.5 * wide, wide[:, ::-1]])

    def run(x: jax.Array, count: jax.Array, *weights: Any) -> jax.Array:
        return jnp.concatenate(norm(x, parts(x), *weights, count, eps=_EPS), axis=1)

    got = prove_bits("a norm of a sum", run, x, weights, budgets, counts)
    total = rounded(added(x[:_COMPARED_ROWS], parts(x[:_COMPARED_ROWS])), dtype)
    wanted = np.concatenate([total, _norm(kind, total, *weights)], axis=1)
    _close("a norm of a sum", got, wanted, 4 * TOLERANCE[dtype])


def _norm_weights(kind: str, width: int, weight: str | None, dtype: str, *, bias: bool) -> tuple[Any, ...]:
    """Return the weight of a norm, or None, and if it can have one, its bias, or None."""
    rng = np.random.default_rng(0)
    factors = None if weight is None else jnp.asarray(rng.uniform(0.5, 1.5, size=width), weight)
    offsets = jnp.asarray(rng.normal(size=width), dtype) if bias else None
    return (factors,) if kind == "rms" else (factors, offsets)


def _norm(kind: str, wide: np.ndarray, factors: Any, offsets: Any = None) -> np.ndarray:
    """Return the norm of rows in float64."""
    if kind == "layer":
        wide = wide - wide.mean(axis=1, keepdims=True)
    wanted = wide / np.sqrt((wide * wide).mean(axis=1, keepdims=True) + _EPS)
    wanted = wanted if factors is None else wanted * rounded(factors, "float32")
    return wanted if offsets is None else wanted + rounded(offsets, "float32")


def prove_bits(
    what: str,
    run: Callable[..., jax.Array],
    x: jax.Array,
    arrays: tuple[Any, ...],
    budgets: Sequence[int],
    counts: Sequence[int],
) -> np.ndarray:
    """Return ``run(x, number of rows, *arrays)`` of all rows; raise AssertionError if one is not finite, or has other
    bits at another place, in a program of fewer rows, or among fewer rows.

    ``budgets``: rows of programs. ``counts``: rows that are not padding, which is NaN.
    """
    program = jax.jit(run)

    def computed(rows: jax.Array, count: int) -> np.ndarray:
        return np.asarray(program(rows.at[count:].set(jnp.nan), jnp.int32(count), *arrays))[:count]

    whole = computed(x, len(x))
    assert np.isfinite(whole.astype(np.float32)).all(), f"{what} gives numbers that are not finite"
    assert np.array_equal(computed(x[::-1], len(x))[::-1], whole), f"{what} has other bits at another place"
    for budget in budgets:
        for count in sorted({min(count, budget) for count in (*counts, budget)}):
            found = computed(x[:budget], count)
            assert np.array_equal(found, whole[:count]), (
                f"{what} has other bits among {count} rows in a step of {budget} tokens"
            )
    return whole


def _rows(rows: int, width: int, dtype: str) -> jax.Array:
    return jax.random.normal(jax.random.key(0), (rows, width), dtype)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _weights(outputs: int, inputs: int, dtype: str) -> jax.Array:
    """[2, outputs, inputs], of which the first are NaN."""
    numbers = jax.random.normal(jax.random.key(1), (outputs, inputs), dtype) * jnp.asarray(inputs**-0.5, dtype)
    return jnp.stack([jnp.full_like(numbers, jnp.nan), numbers])


def _plain(outputs: int, inputs: int, dtype: str) -> Weights:
    def make(_: np.ndarray) -> tuple[jax.Array, Callable[[int, np.ndarray], np.ndarray]]:
        weight = _weights(outputs, inputs, dtype)
        return weight, lambda layer, columns: rounded(weight[layer, columns], "float32")

    return make


def _some(outputs: int) -> np.ndarray:
    return np.unique(np.linspace(0, outputs - 1, _COLUMNS).astype(int))


def _close(what: str, got: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    """Raise AssertionError if one of the first rows, which are wanted, is further from it than ``tolerance``."""
    error = np.abs(got[: len(wanted)].astype(np.float64) - wanted).max(initial=0.0)
    assert error <= tolerance, f"{what} is wrong by {error:.3g}"
