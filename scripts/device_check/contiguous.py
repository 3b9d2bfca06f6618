"""Attention of the same loads by what XLA has: over blocks gathered first, and cuDNN's on contiguous K and V."""

from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

from jaxgen.kernels import REFERENCE
from scripts.device_check.attention import TOLERANCE, inputs_of, program
from scripts.device_check.comparison import compared
from scripts.device_check.part import Part, Shared, UnavailableError
from scripts.device_check.report import Measurement
from scripts.device_check.sizes import AttentionLoad, Sizes
from scripts.device_check.timing import seconds_of


def run(part: Part, sizes: Sizes, shared: Shared) -> None:
    for load in sizes.attention:
        part.measure(f"cudnn_{load.name}", partial(_cudnn, sizes, load, shared))
        part.measure(f"xla_gathered_{load.name}", partial(gathered, sizes, load))


@compared
def gathered(sizes: Sizes, load: AttentionLoad) -> Measurement:
    """Gather every row's blocks, then jax.nn.dot_product_attention; rows have as many queries each."""
    args = inputs_of(load)
    length = load.rows[0][0]
    attend = jax.jit(partial(_over_gathered, length=length))
    wanted = program(REFERENCE, load)(*args)
    error = float(jnp.abs(attend(*args[:6]).astype(jnp.float32) - wanted.astype(jnp.float32)).max())
    if not error <= TOLERANCE:
        raise RuntimeError(f"differs from the reference by {error}")
    return _measurement(sizes, load, lambda: attend(*args[:6]), masked=True)


def _over_gathered(
    q: jax.Array, cache: jax.Array, layer: jax.Array, tables: jax.Array, _: jax.Array, contexts: jax.Array, length: int
) -> jax.Array:
    rows = len(tables)
    kv = cache[tables, layer].transpose(2, 0, 1, 4, 3, 5)  # from [row, block, 2, head, slot, D]
    k, v = kv.reshape(2, rows, -1, *kv.shape[4:])
    positions = contexts[:, None] - length + jnp.arange(length)
    seen = jnp.arange(k.shape[1]) <= positions[..., None]
    out = jax.nn.dot_product_attention(
        q.reshape(rows, length, *q.shape[1:]), k, v, mask=seen[:, None], implementation="xla"
    )
    return out.reshape(q.shape)


@compared
def _cudnn(sizes: Sizes, load: AttentionLoad, shared: Shared) -> Measurement:
    if shared.device.platform != "gpu":
        raise UnavailableError("cuDNN needs a GPU")
    model, (length, context) = load.model, load.rows[0]
    shapes = (length, model.num_heads), (context, model.num_kv_heads), (context, model.num_kv_heads)
    draw: Any = jax.jit(jax.random.normal, static_argnums=(1, 2))
    q, k, v = (
        draw(key, (len(load.rows), *shape, model.head_dim), jnp.dtype(model.dtype))
        for key, shape in zip(jax.random.split(jax.random.key(0), 3), shapes, strict=True)
    )
    attend = jax.jit(partial(jax.nn.dot_product_attention, implementation="cudnn"))
    return _measurement(sizes, load, lambda: attend(q, k, v), masked=False)


def _measurement(sizes: Sizes, load: AttentionLoad, call: Any, *, masked: bool) -> Measurement:
    """``masked``: whether queries of a prompt do not see the tokens after them; if not, they do a little more."""
    seconds = seconds_of(call, sizes.repeats, calls=4)
    moved, flops = load.cost()
    return Measurement(
        seconds=median(seconds), bytes=moved, flops=flops, detail={"best_seconds": min(seconds), "masked": masked}
    )
