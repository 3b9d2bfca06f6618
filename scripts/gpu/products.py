"""The products of a layer by themselves, which are most of a step: for how many tokens they come near the ceiling."""

from statistics import median

import jax
import jax.numpy as jnp

from jaxgen.models.layers import product
from scripts.gpu.bench import Bench
from scripts.gpu.report import MATRIX_RATE, Measurement
from scripts.gpu.timing import seconds_of

MOST_WEIGHTS = 2 * 2**30
"""Bytes of weights that calls go through: a step finds none of a layer's in a cache."""


def measure(bench: Bench, inputs: int, outputs: int) -> Measurement:
    """Of activations and weights as a step has them, by numbers of tokens; ``seconds`` is that of the served budget."""
    count = min(bench.sizes.chained, MOST_WEIGHTS // (2 * inputs * outputs))
    keys = jax.random.split(jax.random.key(0), count + 1)
    draw = jax.jit(jax.random.normal, static_argnums=(1, 2))
    weights = [draw(key, (outputs, inputs), jnp.bfloat16) for key in keys[1:]]
    ceiling = bench.ceilings.get(MATRIX_RATE)
    by_tokens = {}
    for tokens in bench.sizes.product_tokens:
        x = draw(keys[0], (tokens, inputs), jnp.bfloat16)
        samples = seconds_of(lambda x=x: _chain(x, weights), bench.sizes.repeats)  # type: ignore[misc]
        seconds = median(samples) / count
        rate = 2 * tokens * inputs * outputs / seconds
        by_tokens[tokens] = {"seconds": seconds, "flops_per_second": rate, "of_ceiling": ceiling and rate / ceiling}
    tokens = bench.sizes.served_budget
    return Measurement(
        seconds=by_tokens[tokens]["seconds"],
        bytes=2 * (inputs * outputs + tokens * (inputs + outputs)),
        flops=2 * tokens * inputs * outputs,
        detail={"tokens": by_tokens, "inputs": inputs, "outputs": outputs, "calls": count},
    )


@jax.jit
def _chain(x: jax.Array, weights: list[jax.Array]) -> list[jax.Array]:
    """Of one x with each of the weights, one after another."""
    return [product(x, weight, jnp.int32(len(x))).astype(x.dtype) for weight in weights]
