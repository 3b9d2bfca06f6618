"""Attention alone, one layer: decodes of long contexts, which the cache's bytes bound, and chunks of long prompts,
which FLOPs bound."""

from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgen.kernels import REFERENCE, Kernels
from scripts.device_check.kernels import BLOCK_SIZE, kernels_for
from scripts.device_check.part import Part, Shared
from scripts.device_check.report import Measurement
from scripts.device_check.sizes import AttentionLoad, Sizes
from scripts.device_check.timing import seconds_of

TOLERANCE = 2e-2
"""Of bfloat16 outputs, whose values are of the order of 1."""
REFERENCE_REPEATS = 2


def run(part: Part, sizes: Sizes, _: Shared) -> None:
    """A row for each load by the chosen kernels, checked against XLA's and timed beside it."""
    for load in sizes.attention:
        part.measure(load.name, partial(measure, sizes, load))


def measure(sizes: Sizes, load: AttentionLoad) -> Measurement:
    """Time of one call, beside that of the reference."""
    args = inputs_of(load)
    kernels = kernels_for(sizes, load.model)
    attend, reference = program(kernels, load), program(REFERENCE, load)
    error = float(jnp.abs(attend(*args).astype(jnp.float32) - reference(*args).astype(jnp.float32)).max())
    detail: dict[str, Any] = {"kernels": kernels.name, "largest_error": error}
    # Written so that a NaN fails.
    failure = None if error <= TOLERANCE else f"{load.name} differs from the reference by {error}"
    seconds = seconds_of(lambda: attend(*args), sizes.repeats, calls=4)
    detail["best_seconds"] = min(seconds)
    detail["reference_seconds"] = min(seconds_of(lambda: reference(*args), REFERENCE_REPEATS))
    moved, flops = load.cost()
    return Measurement(seconds=median(seconds), bytes=moved, flops=flops, detail=detail, failure=failure)


def program(kernels: Kernels, load: AttentionLoad) -> Any:
    return jax.jit(partial(kernels.ragged_paged_attention, scale=load.model.head_dim**-0.5))


def inputs_of(load: AttentionLoad) -> tuple[jax.Array, ...]:
    """Queries, a cache of one layer and just the blocks that are used, in a shuffled order, and the rows."""
    model = load.model
    lengths, contexts = (np.array(column, np.int32) for column in zip(*load.rows, strict=True))
    blocks = -(-contexts // BLOCK_SIZE)
    tables = np.zeros((len(blocks), blocks.max()), np.int32)
    order = np.random.default_rng(0).permutation(blocks.sum())
    for row, ids in enumerate(np.split(order, np.cumsum(blocks)[:-1])):
        tables[row, : len(ids)] = ids
    shape = (int(blocks.sum()), 1, 2, model.num_kv_heads, BLOCK_SIZE, model.head_dim)
    keys = jax.random.split(jax.random.key(0))
    cache = jax.jit(partial(jax.random.normal, shape=shape, dtype=model.dtype))(keys[0])
    q = jax.random.normal(keys[1], (int(lengths.sum()), model.num_heads, model.head_dim), model.dtype)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    counts = (np.int32(len(lengths)), np.int32((lengths == 1).sum()))
    return (q, cache, *(jnp.asarray(x) for x in (np.int32(0), tables, starts, contexts, *counts)))
