"""Time attention of the same loads by XLA: over gathered blocks, by cuDNN on contiguous K and V, and by the kernels'
reference versions in plain jnp."""

from collections.abc import Callable
from functools import partial
from statistics import median

import jax
import jax.numpy as jnp

from jaxgen.kernels.choice import REFERENCE_GPU
from scripts.gpu.result.report import Measurement, Run
from scripts.gpu.rows.attention import TOLERANCE, dense, distance, inputs_of
from scripts.gpu.rows.bench import Bench, UnavailableError
from scripts.gpu.rows.comparison import compared
from scripts.gpu.rows.timing import compiled, seconds_of
from scripts.gpu.rows.work import AttentionLoad

REFERENCE_REPEATS = 2
"""Few repeats: the reference is many times slower."""


@compared
def xla_gathered(bench: Bench, load: AttentionLoad) -> Run:
    """Time a gather of every row's blocks, then jax.nn.dot_product_attention."""
    inputs = inputs_of(load)
    program = dense.lower(load, *inputs).compile()
    return _timed(load, lambda: program(*inputs), bench.sizes.repeats, calls=4, masked=True)


@compared
def xla_reference(_: Bench, load: AttentionLoad) -> Run:
    """Time the GPU's reference kernels, which a server falls back to. Their result is checked against gathered
    attention."""
    q, cache, *rest = inputs_of(load)
    arguments = (q, cache, jnp.int32(0), *rest)
    program = compiled(partial(REFERENCE_GPU.ragged_paged_attention, scale=load.model.head_dim**-0.5), *arguments)
    wanted = dense(load, q, cache, *rest)

    def run() -> Measurement:
        error = distance(program(*arguments), wanted)
        if not error <= TOLERANCE:
            raise RuntimeError(f"differs from dense attention by {error}")
        return _timed(load, lambda: program(*arguments), REFERENCE_REPEATS, masked=True)()

    return run


@compared
def cudnn(bench: Bench, load: AttentionLoad) -> Run:
    if bench.shared.device.platform != "gpu":
        raise UnavailableError("cuDNN needs a GPU")
    model, (length, context) = load.model, load.rows[0]
    shapes = (length, model.num_heads), (context, model.num_kv_heads), (context, model.num_kv_heads)
    draw: Callable[..., jax.Array] = jax.jit(jax.random.normal, static_argnums=(1, 2))
    q, k, v = (
        draw(key, (len(load.rows), *shape, model.head_dim), jnp.dtype(model.dtype))
        for key, shape in zip(jax.random.split(jax.random.key(0), 3), shapes, strict=True)
    )
    attend = compiled(partial(jax.nn.dot_product_attention, implementation="cudnn"), q, k, v)
    return _timed(load, lambda: attend(q, k, v), bench.sizes.repeats, calls=4, masked=False)


def _timed(load: AttentionLoad, call: Callable[[], object], repeats: int, *, calls: int = 1, masked: bool) -> Run:
    """``masked``: whether a prompt's queries do not see the tokens after them; unmasked ones do a little more work."""

    def run() -> Measurement:
        seconds = seconds_of(call, repeats, calls=calls)
        moved, flops = load.cost()
        detail = {"best_seconds": min(seconds), "masked": masked}
        return Measurement(seconds=median(seconds), bytes=moved, flops=flops, detail=detail)

    return run
