"""Time a product of experts as a server runs it, on Hopper one Pallas kernel, and XLA's loop over tiles."""

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgen.core.quantization import WeightFormat
from jaxgen.kernels.choice import REFERENCE, REFERENCE_GPU
from jaxgen.kernels.coded_weights import coded_weights
from jaxgen.kernels.kernels import Kernel, Kernels
from scripts.gpu.result.report import Measurement, Run
from scripts.gpu.rows.bench import Bench
from scripts.gpu.rows.kernels import kernels_for
from scripts.gpu.rows.timing import back_to_back, compiled, seconds_of
from scripts.gpu.rows.work import ExpertLoad

TOLERANCE = 2.0**-6
"""Largest error relative to the largest value: both accumulate in float32, in other orders."""


def measure(bench: Bench, load: ExpertLoad) -> Run:
    """Compare the kernel with the loop, in results and time, and the bits of rows among fewer rows.

    Rows of tokens are drawn evenly over the experts.
    """
    rows = load.tokens * load.per_token
    chosen = np.random.default_rng(0).integers(load.experts, size=rows)
    starts = np.searchsorted(np.sort(chosen), np.arange(load.experts + 1)).astype(np.int32)
    x = jax.random.normal(jax.random.key(0), (rows, load.inputs), jnp.bfloat16)
    given = x, jnp.asarray(starts)
    kernels, used = kernels_for(bench), len(np.unique(chosen))
    ours, loop = (_call(one, load, *given) for one in (kernels, REFERENCE_GPU))
    kept = np.flatnonzero(np.arange(rows) % 3)
    fewer = jnp.zeros_like(x).at[: len(kept)].set(x[kept]), jnp.asarray(np.searchsorted(kept, starts), jnp.int32)

    def run() -> Measurement:
        got, wanted = (np.asarray(call(*given)) for call in (ours, loop))
        error, largest = float(np.abs(got - wanted).max()), float(np.abs(wanted).max())
        equal = np.array_equal(np.asarray(ours(*fewer))[: len(kept)], got[kept])
        repeats = bench.sizes.repeats
        seconds, share = back_to_back(partial(ours, *given), repeats)
        by_loop = median(seconds_of(partial(loop, *given), repeats))
        detail = {"kernels": kernels.name, "experts_used": used, "largest_error": error, "loop_seconds": by_loop}
        detail["dispatch_share"] = share
        return Measurement(
            seconds=seconds,
            bytes=_weight_bytes(load) * used // load.experts + rows * (2 * load.inputs + 4 * load.outputs),
            flops=2 * rows * load.inputs * load.outputs,
            detail=detail | {"equal": equal},
            failure=_failure(error, largest, equal=equal or kernels.name == REFERENCE.name),
        )

    return run


def _failure(error: float, largest: float, *, equal: bool) -> str | None:
    if not error <= TOLERANCE * largest:  # so a NaN fails
        return f"differs from the loop by {error} of {largest}"
    return None if equal else "rows have other bits among fewer rows"


def _weight_bytes(load: ExpertLoad) -> int:
    shape = load.experts, load.outputs, load.inputs
    return 2 * load.experts * load.outputs * load.inputs if load.form is None else load.form.num_bytes(shape)


def _call(kernels: Kernels, load: ExpertLoad, x: jax.Array, starts: jax.Array) -> Callable[..., jax.Array]:
    """Return the compiled product of rows like ``x`` with the ``starts`` of experts. A call makes no array first."""
    function, weights = _plain(kernels, load) if load.form is None else _coded(kernels, load, load.form)
    layer = jax.block_until_ready(jnp.int32(0))
    program = compiled(function, x, weights, layer, starts)

    def call(x: jax.Array, starts: jax.Array) -> jax.Array:
        result: jax.Array = program(x, weights, layer, starts)
        return result

    return call


def _plain(kernels: Kernels, load: ExpertLoad) -> tuple[Kernel, Any]:
    draw = jax.jit(jax.random.normal, static_argnums=(1, 2))
    shape = 1, load.experts, load.outputs, load.inputs
    return kernels.expert_product, draw(jax.random.key(1), shape, jnp.bfloat16)


def _coded(kernels: Kernels, load: ExpertLoad, form: WeightFormat) -> tuple[Kernel, Any]:
    """Return the product with codes; kernels for a CPU have none, and get XLA's for GPUs."""
    kernel = (kernels.floats if form.floats else kernels.quantized) or (
        REFERENCE_GPU.floats if form.floats else REFERENCE_GPU.quantized
    )
    assert kernel is not None
    weights, _ = coded_weights(form, load.outputs, load.inputs, kernel.pack_codes, kernel.pack_groups)(
        np.ones(load.experts, bool)
    )
    options: dict[str, Any] = {"bits": form.bits, "group": form.group or load.inputs, "out_features": load.outputs}
    return partial(kernel.expert_product, **options), weights
