"""Time a layer's matrix products alone, by number of tokens, against the ceiling. They are most of a step."""

from statistics import median

import jax
import jax.numpy as jnp

from jaxgen.models.linear import product
from scripts.gpu.bench import Bench
from scripts.gpu.report import MATRIX_RATE, Measurement
from scripts.gpu.timing import seconds_of

MOST_WEIGHTS = 2 * 2**30
"""Most bytes of weights that calls cycle through: in a step, no weights of a layer are in a cache either."""


def measure(bench: Bench, inputs: int, outputs: int) -> Measurement:
    """Measure products in a step's shapes, by number of tokens; ``seconds`` are those of the served budget."""
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
    """Multiply one x by each of the weights, one after another."""
    return [product(x, weight, jnp.int32(len(x))).astype(x.dtype) for weight in weights]
