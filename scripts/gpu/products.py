"""Time a layer's matrix products alone, by number of tokens, against the ceiling. They are most of a step."""

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgen.models.linear import product
from scripts.gpu.bench import Bench, Options
from scripts.gpu.report import MATRIX_RATE, Measurement, Run
from scripts.gpu.timing import compiled, seconds_of

MOST_WEIGHTS = 2 * 2**30
"""Most bytes of weights that calls cycle through: in a step, no weights of a layer are in a cache either."""


def measure(bench: Bench, inputs: int, outputs: int) -> Run:
    """Measure products in a step's shapes, by number of tokens; ``seconds`` are those of the served budget."""
    count = min(bench.sizes.chained, MOST_WEIGHTS // (2 * inputs * outputs))
    keys = jax.random.split(jax.random.key(0), count + 1)
    draw = jax.jit(jax.random.normal, static_argnums=(1, 2))
    weights = [draw(key, (outputs, inputs), jnp.bfloat16) for key in keys[1:]]
    ceiling = bench.ceilings.get(MATRIX_RATE)
    calls: dict[int, Callable[[], Any]] = {}
    for tokens in bench.sizes.product_tokens:
        x = draw(keys[0], (tokens, inputs), jnp.bfloat16)
        calls[tokens] = partial(compiled(_chain, x, weights), x, weights)

    def run() -> Measurement:
        by_tokens = {}
        for tokens, call in calls.items():
            seconds = median(seconds_of(call, bench.sizes.repeats)) / count
            rate = 2 * tokens * inputs * outputs / seconds
            by_tokens[tokens] = {"seconds": seconds, "flops_per_second": rate, "of_ceiling": ceiling and rate / ceiling}
        tokens = bench.sizes.served_budget
        return Measurement(
            seconds=by_tokens[tokens]["seconds"],
            bytes=2 * (inputs * outputs + tokens * (inputs + outputs)),
            flops=2 * tokens * inputs * outputs,
            detail={"tokens": by_tokens, "inputs": inputs, "outputs": outputs, "calls": count},
        )

    return run


def bits(bench: Bench, inputs: int, outputs: int, options: Options = ()) -> Run:
    """Report whether a row of a product has the same bits whatever the number of rows. ``options``: of XLA."""
    keys = jax.random.split(jax.random.key(0))
    draw = jax.jit(jax.random.normal, static_argnums=(1, 2))
    most = max(bench.sizes.bits_tokens)
    x, weight = (draw(key, (n, inputs), jnp.bfloat16) for key, n in zip(keys, (most, outputs), strict=True))
    programs = {n: compiled(_chain, x[:n], [weight], options=options) for n in bench.sizes.bits_tokens}
    calls = {n: partial(program, x[:n], [weight]) for n, program in programs.items()}

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


def _chain(x: jax.Array, weights: list[jax.Array]) -> list[jax.Array]:
    """Multiply one x by each of the weights, one after another."""
    return [product(x, weight, jnp.int32(len(x))).astype(x.dtype) for weight in weights]
