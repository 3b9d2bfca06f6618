"""Time attention alone, one layer: decodes of long contexts, bound by the cache's bytes, and chunks of long prompts,
bound by FLOPs. The plan, which a step makes once for all layers, is made before and timed by itself."""

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgen.kernels.kernels import Kernels
from scripts.gpu.result.report import Measurement, Run
from scripts.gpu.rows.bench import Bench
from scripts.gpu.rows.kernels import BLOCK_SIZE, kernels_for
from scripts.gpu.rows.timing import compiled, seconds_of
from scripts.gpu.rows.work import AttentionLoad

TOLERANCE = 2e-2
"""Largest error of bfloat16 outputs, whose values are of the order of 1."""
BEYOND_L2 = 256 * 2**20
"""Bytes of K and V that consecutive calls read before they read the same ones again, as a step's layers do."""
MOST_LAYERS = 8


def measure(bench: Bench, load: AttentionLoad) -> Run:
    """Measure the seconds of a call in a program of many calls, of a program of one call, and of the plan."""
    q, cache, *rest = inputs_of(load)
    kernels = kernels_for(bench)
    calls, repeats = bench.sizes.chained, bench.sizes.repeats
    planned = _planned(kernels, q, cache, rest)
    plan_shape = None if planned is None else jax.eval_shape(planned)
    attend = partial(kernels.ragged_paged_attention, scale=load.model.head_dim**-0.5)
    programs = [compiled(partial(_chain, attend, n), q, cache, rest, plan_shape) for n in (1, calls)]
    wanted = dense(load, q, cache, *rest)

    def run() -> Measurement:
        plan = None if planned is None else planned()
        plan_seconds = None if planned is None else median(seconds_of(planned, repeats, calls=4))
        one, many = (partial(program, q, cache, rest, plan) for program in programs)
        error = distance(one(), wanted)
        single = seconds_of(one, repeats)
        seconds = [total / calls for total in seconds_of(many, repeats)]
        moved, flops = load.cost()
        detail = {
            "kernels": kernels.name,
            "largest_error": error,
            "calls": calls,
            "layers": cache.shape[1],
            "best_seconds": min(seconds),
            "single_call_seconds": median(single),
            "plan_seconds": plan_seconds,
        }
        # Written so that a NaN fails.
        failure = None if error <= TOLERANCE else f"differs from dense attention by {error}"
        return Measurement(seconds=median(seconds), bytes=moved, flops=flops, detail=detail, failure=failure)

    return run


def _chain(
    attend: Callable[..., jax.Array], calls: int, q: jax.Array, cache: jax.Array, rest: list[jax.Array], plan: Any
) -> jax.Array:
    """Call attention on one layer after the other. A call's queries are ``q`` plus the output of the call before it."""
    options = {} if plan is None else {"plan": plan}

    def call(i: jax.Array, out: jax.Array) -> jax.Array:
        return attend(q + out, cache, i % cache.shape[1], *rest, **options)

    return jax.lax.fori_loop(0, calls, call, jnp.zeros_like(q))


def _planned(kernels: Kernels, q: jax.Array, cache: jax.Array, rest: list[jax.Array]) -> Callable[[], Any] | None:
    """Return a function that makes attention's plan of the rows; None where the kernels plan nothing."""
    if kernels.plan_attention is None:
        return None
    _, *rows = rest  # all but the block tables
    return partial(jax.jit(kernels.plan_attention), q, cache, *rows)


@partial(jax.jit, static_argnums=0)
def dense(
    load: AttentionLoad,
    q: jax.Array,
    cache: jax.Array,
    tables: jax.Array,
    _: jax.Array,
    contexts: jax.Array,
    *counts: jax.Array,
) -> jax.Array:
    """Compute attention of the first layer by XLA, over gathered blocks. All rows have the same number of queries."""
    del counts
    rows, length = len(tables), load.rows[0][0]
    kv = cache[tables, 0].transpose(2, 0, 1, 4, 3, 5)  # from [row, block, 2, head, slot, D]
    k, v = kv.reshape(2, rows, -1, *kv.shape[4:])
    positions = contexts[:, None] - length + jnp.arange(length)
    seen = jnp.arange(k.shape[1]) <= positions[..., None]
    with jax.numpy_dtype_promotion("standard"):  # JAX's attention mixes dtypes, which tests forbid otherwise
        out = jax.nn.dot_product_attention(
            q.reshape(rows, length, *q.shape[1:]), k, v, mask=seen[:, None], implementation="xla"
        )
    return out.reshape(q.shape)


def distance(got: jax.Array, want: jax.Array) -> float:
    """Return the largest absolute difference."""
    return float(jnp.abs(got.astype(jnp.float32) - want.astype(jnp.float32)).max())


def inputs_of(load: AttentionLoad) -> tuple[jax.Array, ...]:
    """Return queries, a cache of exactly the used blocks in shuffled order, and the rows. A call's layer index, which
    comes after the cache, is left out."""
    model = load.model
    lengths, contexts = (np.array(column, np.int32) for column in zip(*load.rows, strict=True))
    blocks = -(-contexts // BLOCK_SIZE)
    tables = np.zeros((len(blocks), blocks.max()), np.int32)
    order = np.random.default_rng(0).permutation(blocks.sum())
    for row, ids in enumerate(np.split(order, np.cumsum(blocks)[:-1])):
        tables[row, : len(ids)] = ids
    block = (2, model.num_kv_heads, BLOCK_SIZE, model.head_dim)
    layer_bytes = int(blocks.sum() * np.prod(block)) * jnp.dtype(model.dtype).itemsize
    layers = min(-(-BEYOND_L2 // layer_bytes), MOST_LAYERS)
    keys = jax.random.split(jax.random.key(0))
    shape = (int(blocks.sum()), layers, *block)
    cache = jax.jit(partial(jax.random.normal, shape=shape, dtype=model.dtype))(keys[0])
    q = jax.random.normal(keys[1], (int(lengths.sum()), model.num_heads, model.head_dim), model.dtype)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    counts = (np.int32(len(lengths)), np.int32((lengths == 1).sum()))
    return (q, cache, *(jnp.asarray(x) for x in (tables, starts, contexts, *counts)))
