"""Time a product of experts: Pallas' kernel in one launch, and XLA's loop over experts, which a server runs."""

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgen.kernels.choice import REFERENCE_GPU
from jaxgen.runner.model_runner import device_info
from scripts.gpu.bench import Bench
from scripts.gpu.kernels import HOPPER
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
    name, product = _kernel(bench)
    ours, loop = (partial(compiled(one, *arguments), *arguments) for one in (product, REFERENCE_GPU.expert_product))
    used = len(np.unique(chosen))

    def run() -> Measurement:
        got, wanted = (np.asarray(call()) for call in (ours, loop))
        error, largest = float(np.abs(got - wanted).max()), float(np.abs(wanted).max())
        seconds, by_loop = (median(seconds_of(call, bench.sizes.repeats)) for call in (ours, loop))
        detail = {"kernels": name, "experts_used": used, "largest_error": error, "loop_seconds": by_loop}
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


def _kernel(bench: Bench) -> tuple[str, Callable[..., Any]]:
    device = device_info()
    if not bench.sizes.pallas or device.compute_capability != HOPPER:
        return "XLA", REFERENCE_GPU.expert_product
    from pallas_kernels.gpu.expert_product import expert_product  # here: importing Mosaic takes time

    return "Hopper", partial(expert_product, num_ctas=device.num_cores)
