"""Time a layer's matrix products alone, by number of tokens, against the ceiling. They are most of a step."""

import math
from collections.abc import Callable
from functools import partial
from itertools import islice
from itertools import product as product_of
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgen.models.linear import product
from scripts.gpu.result.report import COPY_RATE, MATRIX_RATE, Measurement, Run
from scripts.gpu.rows.bench import Bench, Options
from scripts.gpu.rows.timing import back_to_back, compiled

MOST_WEIGHTS = 2 * 2**30
"""Most bytes of weights that calls cycle through: in a step, no weights of a layer are in a cache either."""
CALL_SECONDS = 2e-3
"""Least time of a call by its floor: the host needs up to 1 ms to dispatch a program of many products."""
MOST_PRODUCTS = 512


def measure(bench: Bench, inputs: int, outputs: int) -> Run:
    """Measure products in a step's shapes, by number of tokens; ``seconds`` are those of the served budget.

    A call has enough products to take the device longer than the host, and calls are dispatched back
    to back.
    """
    draw = jax.jit(jax.random.normal, static_argnums=(1, 2))
    counts = {tokens: _count(bench, tokens, inputs, outputs) for tokens in bench.sizes.product_tokens}
    distinct = min(max(counts.values()), max(MOST_WEIGHTS // (2 * inputs * outputs), 1))
    keys = jax.random.split(jax.random.key(0), distinct + MOST_PRODUCTS)
    weights = [draw(key, (outputs, inputs), jnp.bfloat16) for key in keys[:distinct]]
    ceiling = bench.ceilings.get(MATRIX_RATE)
    calls: dict[int, Callable[[], Any]] = {}
    for tokens, count in counts.items():
        turns = -(-count // distinct)
        xs = [draw(key, (tokens, inputs), jnp.bfloat16) for key in keys[distinct:][:turns]]
        calls[tokens] = partial(compiled(partial(_chain, count), xs, weights), xs, weights)

    def run() -> Measurement:
        by_tokens = {}
        for tokens, call in calls.items():
            together, share = back_to_back(call, bench.sizes.repeats)
            seconds = together / counts[tokens]
            rate = 2 * tokens * inputs * outputs / seconds
            by_tokens[tokens] = {"seconds": seconds, "flops_per_second": rate, "of_ceiling": ceiling and rate / ceiling}
            by_tokens[tokens] |= {"products": counts[tokens], "dispatch_share": share}
        tokens = bench.sizes.served_budget
        return Measurement(
            seconds=by_tokens[tokens]["seconds"],
            bytes=_bytes(tokens, inputs, outputs),
            flops=2 * tokens * inputs * outputs,
            detail={"tokens": by_tokens, "inputs": inputs, "outputs": outputs, "weights": distinct},
        )

    return run


def _bytes(tokens: int, inputs: int, outputs: int) -> int:
    return 2 * (inputs * outputs + tokens * (inputs + outputs))


def _count(bench: Bench, tokens: int, inputs: int, outputs: int) -> int:
    """Return how many products take CALL_SECONDS by the ceilings; without these, two."""
    if not {COPY_RATE, MATRIX_RATE} <= bench.ceilings.keys() or not bench.sizes.pallas:
        return 2
    moved, flops = _bytes(tokens, inputs, outputs), 2 * tokens * inputs * outputs
    floor = max(moved / bench.ceilings[COPY_RATE], flops / bench.ceilings[MATRIX_RATE])
    return min(math.ceil(CALL_SECONDS / floor), MOST_PRODUCTS)


def bits(bench: Bench, inputs: int, outputs: int, options: Options = ()) -> Run:
    """Report whether a row of a product has the same bits whatever the number of rows. ``options``: of XLA."""
    keys = jax.random.split(jax.random.key(0))
    draw = jax.jit(jax.random.normal, static_argnums=(1, 2))
    most = max(bench.sizes.bits_tokens)
    x, weight = (draw(key, (n, inputs), jnp.bfloat16) for key, n in zip(keys, (most, outputs), strict=True))
    programs = {n: compiled(partial(_chain, 1), [x[:n]], [weight], options=options) for n in bench.sizes.bits_tokens}
    calls = {n: partial(program, [x[:n]], [weight]) for n, program in programs.items()}

    def run() -> Measurement:
        least = min(calls)
        rows = {tokens: np.asarray(call()[0][:least].astype(jnp.float32)) for tokens, call in calls.items()}
        wanted = rows[least]
        if len(np.unique(wanted, axis=0)) != least or not np.isfinite(wanted).all():
            raise RuntimeError("the rows of the product are alike or not finite")
        unequal = {tokens: int((found != wanted).sum()) for tokens, found in rows.items() if (found != wanted).any()}
        detail = {"equal": not unequal, "tokens": list(rows), "unequal": unequal, "of": wanted.size}
        return Measurement(detail=detail)

    return run


def _chain(count: int, xs: list[jax.Array], weights: list[jax.Array]) -> list[jax.Array]:
    """Return ``count`` products, each of which waits for the one before it.

    XLA would otherwise join products that share a factor, and compute two equal ones once.
    """
    results: list[jax.Array] = []
    for factors in islice(product_of(xs, weights), count):
        (x, weight), results = lax.optimization_barrier((factors, results))
        results.append(product(x, weight, jnp.int32(len(x))).astype(x.dtype))
    return results
