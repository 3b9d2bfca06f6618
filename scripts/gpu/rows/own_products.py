"""Time and check the dense products and norms of our own, one program for all numbers of rows, with float64 as the
measure."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgen.kernels.kernels import Kernel
from scripts.gpu.result.report import COPY_RATE, MATRIX_RATE, Measurement, Run
from scripts.gpu.rows.bench import Bench
from scripts.gpu.rows.kernels import DenseKernels, dense_kernels
from scripts.gpu.rows.timing import back_to_back, compiled

TOLERANCE, ROUNDED = 2.0**-12, 2.0**-7
"""Largest errors relative to the largest value: of a float32 sum, and of a bfloat16 result."""
CHECKED_ROWS = 4
"""Rows that are compared with float64."""
MOST_PRODUCTS = 128
MOST_WEIGHTS, MOST_RESULTS = 2**30, 2**31
"""Most products of a call; most bytes of the weights that they take by turns, which no cache holds, and of results."""
ACTIVATION = "silu"
EPS = 1e-5


def measure(bench: Bench, inputs: int, outputs: int) -> Run:
    """Measure a product for each number of rows, among as many rows as the most; ``seconds`` are those of the served
    budget.

    A call has many products, of the layers of a stack by turns, and calls are dispatched back to back.
    """
    kernels, tokens = dense_kernels(bench), bench.sizes.own_tokens
    layers = max(1, min(MOST_WEIGHTS // (2 * inputs * outputs), MOST_PRODUCTS))
    count = min(MOST_PRODUCTS, max(1, MOST_RESULTS // (2 * max(tokens) * outputs))) if bench.sizes.pallas else 2
    x, weight = _drawn((max(tokens), inputs), (layers, outputs, inputs))
    multiply = jax.jit(partial(kernels.product, out_features=outputs, dtype=jnp.bfloat16))  # so it is lowered once
    program = compiled(partial(_chain, multiply, count), x, weight, jnp.int32(1))
    calls = {used: partial(program, x, weight, jnp.int32(used)) for used in tokens}

    def run() -> Measurement:
        by_tokens = {}
        for used, call in calls.items():
            together, share = back_to_back(call, bench.sizes.repeats)
            seconds = together / count
            shares = _of_ceilings(bench, used, inputs, outputs, seconds)
            by_tokens[used] = {"seconds": seconds, "products": count, "dispatch_share": share} | shares
        served = max(used for used in tokens if used <= bench.sizes.served_budget)
        return Measurement(
            seconds=by_tokens[served]["seconds"],
            bytes=_bytes(served, inputs, outputs),
            flops=2 * served * inputs * outputs,
            detail={"kernels": kernels.name, "tokens": by_tokens, "inputs": inputs, "outputs": outputs},
        )

    return run


def _chain(multiply: Kernel, count: int, x: jax.Array, weight: jax.Array, num_tokens: jax.Array) -> list[jax.Array]:
    """Return ``count`` products, each of which waits for the one before it."""
    results: list[jax.Array] = []
    for i in range(count):
        x, results = lax.optimization_barrier((x, results))
        results.append(multiply(x, weight, jnp.int32(i % len(weight)), num_tokens))
    return results


def bits(bench: Bench, inputs: int, outputs: int) -> Run:
    """Check a product, and the gated one of the same weight, for each number of rows: the bits, and a few rows' error.

    Rows beyond the number are NaN.
    """
    kernels, counts = dense_kernels(bench), bench.sizes.own_bits_tokens
    x, weight = _drawn((max(counts), inputs), (2, outputs, inputs))
    layer, most = jnp.int32(1), jnp.int32(max(counts))
    product = compiled(partial(kernels.product, out_features=outputs), x, weight, layer, most)
    options = {"activation": ACTIVATION, "dtype": jnp.float32}
    gated = compiled(partial(kernels.gated, **options), x, weight, layer, most)
    exact = np.asarray(x[:CHECKED_ROWS], np.float64) @ np.asarray(weight[1], np.float64).T
    gate, up = np.split(exact, 2, axis=1)
    wanted = {"product": exact, "gated": gate / (1 + np.exp(-gate)) * up}

    def run() -> Measurement:
        calls = {"product": product, "gated": gated}
        by_count = {name: partial(_rows, call, x, weight, layer) for name, call in calls.items()}
        return _compared(kernels, by_count, counts, wanted)

    return run


def norms(bench: Bench, width: int) -> Run:
    """Check the norm of a sum with two parts in the same way."""
    kernels, counts = dense_kernels(bench), bench.sizes.own_bits_tokens
    x, parts = _drawn((max(counts), width), (2, max(counts), width), jnp.float32)
    weight = jnp.linspace(-1.0, 2.0, width, dtype=x.dtype)
    program = compiled(partial(kernels.add_rms_norm, eps=EPS), x, parts, weight, jnp.int32(max(counts)))
    total = x + (parts[0] + parts[1]).astype(x.dtype)
    wide = np.asarray(total[:CHECKED_ROWS], np.float64)
    exact = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + EPS) * np.asarray(weight, np.float64)

    def found(index: int, count: int) -> np.ndarray:
        padded, used = (_poisoned(x, count), _poisoned(parts, count)), jnp.int32(count)
        return np.asarray(program(*padded, weight, used)[index].astype(jnp.float32))[:count]

    def run() -> Measurement:
        calls = {"sum": partial(found, 0), "norm": partial(found, 1)}
        return _compared(kernels, calls, counts, {"sum": wide, "norm": exact}, tolerance=ROUNDED)

    return run


def _drawn(x: tuple[int, ...], weight: tuple[int, ...], dtype: Any = jnp.bfloat16) -> tuple[jax.Array, jax.Array]:
    """Return normal rows, and a stack of normal weights that keep their size."""
    draw = jax.jit(jax.random.normal, static_argnums=(1, 2))
    scale = jnp.asarray(weight[-1] ** -0.5, dtype)
    return draw(jax.random.key(0), x, jnp.bfloat16), draw(jax.random.key(1), weight, dtype) * scale


@jax.jit
def _poisoned(x: jax.Array, count: int) -> jax.Array:
    """Return x with NaN in all rows but the first ``count``."""
    return jnp.where(jnp.arange(x.shape[-2])[:, None] < count, x, jnp.nan)


def _rows(call: Callable[..., jax.Array], x: jax.Array, weight: jax.Array, layer: jax.Array, count: int) -> np.ndarray:
    return np.asarray(call(_poisoned(x, count), weight, layer, jnp.int32(count)))[:count]


def _compared(
    kernels: DenseKernels,
    calls: Mapping[str, Callable[[int], np.ndarray]],
    counts: tuple[int, ...],
    wanted: Mapping[str, np.ndarray],
    tolerance: float = TOLERANCE,
) -> Measurement:
    """Compare the results for each number of rows with those for the most, and the first rows with float64."""
    unequal: dict[str, list[int]] = {}
    errors: dict[str, float] = {}
    for name, call in calls.items():
        together = call(max(counts))
        unequal[name] = [count for count in counts if not np.array_equal(call(count), together[:count])]
        exact = wanted[name]
        errors[name] = float(np.abs(together[: len(exact)] - exact).max() / np.abs(exact).max())
    wrong = [name for name, error in errors.items() if not error <= tolerance]  # so a NaN is wrong
    reasons = [f"{name}: other bits for {found} rows" for name, found in unequal.items() if found]
    reasons += [f"{name}: error {errors[name]}" for name in wrong]
    detail = {"kernels": kernels.name, "equal": not any(unequal.values()), "unequal": unequal, "errors": errors}
    return Measurement(detail=detail | {"tokens": list(counts)}, failure="; ".join(reasons) or None)


def _bytes(tokens: int, inputs: int, outputs: int) -> int:
    return 2 * (inputs * outputs + tokens * (inputs + outputs))


def _of_ceilings(bench: Bench, tokens: int, inputs: int, outputs: int, seconds: float) -> dict[str, float]:
    """Return the share of each known ceiling that a product reaches."""
    work = {COPY_RATE: _bytes(tokens, inputs, outputs), MATRIX_RATE: 2 * tokens * inputs * outputs}
    known = {name: amount / seconds for name, amount in work.items() if name in bench.ceilings}
    return {f"of_{name}": rate / bench.ceilings[name] for name, rate in known.items()}
