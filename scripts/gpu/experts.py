"""Time a product of experts as a server runs it, on Hopper one Pallas kernel, and XLA's loop over tiles."""

from functools import partial
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np

from jaxgen.kernels.choice import REFERENCE_GPU
from scripts.gpu.bench import Bench
from scripts.gpu.kernels import kernels_for
from scripts.gpu.report import Measurement, Run
from scripts.gpu.sizes import ExpertLoad
from scripts.gpu.timing import compiled, seconds_of

TOLERANCE = 2.0**-6
"""Largest error relative to the largest value: both accumulate in float32, in other orders."""


def measure(bench: Bench, load: ExpertLoad) -> Run:
    """Compare the kernel with the loop, in results and time. Rows of tokens are drawn evenly over the experts."""
    keys = jax.random.split(jax.random.key(0))
    rows = load.tokens * load.per_token
    chosen = np.random.default_rng(0).integers(load.experts, size=rows)
    starts = np.searchsorted(np.sort(chosen), np.arange(load.experts + 1)).astype(np.int32)
    draw = jax.jit(jax.random.normal, static_argnums=(1, 2))
    x = draw(keys[0], (rows, load.inputs), jnp.bfloat16)
    weights = draw(keys[1], (1, load.experts, load.outputs, load.inputs), jnp.bfloat16)
    arguments = (x, weights, jnp.int32(0), jnp.asarray(starts))
    kernels = kernels_for(bench)
    products = kernels.expert_product, REFERENCE_GPU.expert_product
    ours, loop = (partial(compiled(one, *arguments), *arguments) for one in products)
    used = len(np.unique(chosen))

    def run() -> Measurement:
        got, wanted = (np.asarray(call()) for call in (ours, loop))
        error, largest = float(np.abs(got - wanted).max()), float(np.abs(wanted).max())
        repeats = bench.sizes.repeats
        seconds = median(seconds_of(ours, repeats, calls=bench.sizes.chained))
        by_loop = median(seconds_of(loop, repeats))
        detail = {"kernels": kernels.name, "experts_used": used, "largest_error": error, "loop_seconds": by_loop}
        # Written so that a NaN fails.
        failure = None if error <= TOLERANCE * largest else f"differs from the loop by {error} of {largest}"
        return Measurement(
            seconds=seconds,
            bytes=2 * used * load.inputs * load.outputs + rows * (2 * load.inputs + 4 * load.outputs),
            flops=2 * rows * load.inputs * load.outputs,
            detail=detail,
            failure=failure,
        )

    return run
