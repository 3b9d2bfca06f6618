"""Whether kernels are right where they will run: what they compute, once, against the definition."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.kv_codes import CODE_DTYPES, decode, encode, row_width

TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}
_ROWS = ((1, 70), (1, 1100), (20, 90), (3, 3))
"""(query tokens, context) of each row."""
_LAYER, _WINDOW, _SOFT_CAP = 1, 50, 1.5
_COMPARED_EXPERTS, _COMPARED_COLUMNS = 6, 512
_EXPERTS_TOLERANCE = 1e-3
"""Largest absolute error of sums of about 1, accumulated in float32."""


def prove_cache_kernels(
    write_kv: Callable[..., Any],
    attention: Callable[..., Any],
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    dtype: str,
    blank: float,
    codes: str | None = None,
    value_dim: int | None = None,
) -> None:
    """Write the rows' keys and values, attend to them; raise AssertionError if a result is wrong.

    They attend twice: plainly, and with a window that is an operand, a cap and sinks. ``blank``: what the cache begins
    with, NaN where the kernels say that it has no effect. ``codes``: int8 or fp8, for a cache of these
    (pallas_kernels.kv_codes), of which each byte is 255 then; None: it has numbers. ``value_dim``: of a cache of one
    part, whose values are the first numbers of its keys; None: it has two.
    """
    rng = np.random.default_rng(0)
    per_row = [math.ceil(context / block_size) for _, context in _ROWS]
    num_blocks = sum(per_row) + 1
    blocks = np.split(rng.permutation(num_blocks)[:-1], np.cumsum(per_row)[:-1])
    tables = np.zeros((len(_ROWS), max(per_row)), np.int32)
    slots = []
    for row, (ids, (_, context)) in enumerate(zip(blocks, _ROWS, strict=True)):
        tables[row, : len(ids)] = ids
        slots.append(ids[np.arange(context) // block_size] * block_size + np.arange(context) % block_size)
    tokens = sum(context for _, context in _ROWS)
    k, v = (rounded(rng.normal(size=(tokens, kv_heads, head_dim)), dtype) for _ in range(2))
    starts = np.cumsum([0] + [length for length, _ in _ROWS], dtype=np.int32)
    q = rounded(rng.normal(size=(starts[-1], heads, head_dim)), dtype)
    of_cache: Any = dtype if codes is None else CODE_DTYPES[codes]
    parts, shared = (2, {}) if value_dim is None else (1, {"value_dim": value_dim})
    empty = np.full((num_blocks, _LAYER + 1, parts, kv_heads, block_size, row_width(head_dim, of_cache)), 255, np.uint8)
    cache = write_kv(
        jnp.full(empty.shape, blank, dtype) if codes is None else jnp.asarray(empty.view(of_cache)),
        jnp.int32(_LAYER),
        jnp.asarray(k, dtype),
        jnp.asarray(v, dtype) if value_dim is None else None,
        jnp.asarray(np.concatenate(slots), jnp.int32),
    )
    k, v = (rounded(decode(encode(jnp.asarray(x, dtype), of_cache), dtype), dtype) for x in (k, v))
    v = v if value_dim is None else k[..., :value_dim]
    sinks = rounded(rng.normal(size=heads), "float32")
    for window, soft_cap, of_heads in ((None, None, None), (_WINDOW, _SOFT_CAP, sinks)):
        out = attention(
            jnp.asarray(q, dtype),
            cache,
            jnp.int32(_LAYER),
            jnp.asarray(tables),
            jnp.asarray(starts),
            jnp.asarray([context for _, context in _ROWS], jnp.int32),
            jnp.int32(len(_ROWS)),
            jnp.int32(sum(length == 1 for length, _ in _ROWS)),
            scale=head_dim**-0.5,
            window=None if window is None else jnp.int32(window),
            soft_cap=soft_cap,
            sinks=None if of_heads is None else jnp.asarray(of_heads, jnp.float32),
            **shared,
        )
        compare(out, _attention(q, k, v, window, soft_cap, of_heads), dtype)


def prove_copies(
    gather_blocks: Callable[..., Any],
    scatter_blocks: Callable[..., Any],
    *,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    dtype: str,
    codes: str | None = None,
) -> None:
    """Copy blocks out of a cache and into another; raise AssertionError if any bit is wrong.

    ``codes``: as of ``prove_cache_kernels``.
    """
    shape = (7, 2, 2, kv_heads, block_size, head_dim)
    rng = np.random.default_rng(0)
    of_cache: Any = dtype if codes is None else CODE_DTYPES[codes]
    cache, other = (encode(jnp.asarray(rng.normal(size=shape), dtype), of_cache) for _ in range(2))
    ids, count = np.array([5, 0, 3, 6], np.int32), np.int32(3)
    staging = gather_blocks(cache, jnp.asarray(ids), jnp.asarray(count))
    assert np.array_equal(np.asarray(staging)[:count], np.asarray(cache)[ids[:count]]), "gathered blocks are wrong"
    want = np.array(other)
    want[ids[:count]] = np.asarray(staging)[:count]
    got = scatter_blocks(other, jnp.asarray(ids), staging, jnp.asarray(count))
    assert np.array_equal(np.asarray(got), want), "scattered blocks are wrong"


def prove_short_convolution(convolve: Callable[..., Any], *, dtype: str, gated: bool = True) -> None:
    """Compute chunks that begin and continue sequences; raise AssertionError if a result is wrong.

    ``gated``: the form.

    States are NaN of other layers and rows, and where no input was.
    """
    rng = np.random.default_rng(0)
    num_taps, width, padding = 4, 150, 2
    chunks = ((1, 1), (1, 9), (2, 2), (11, 11), (5, 20))  # (tokens, context) of each
    rows, tokens = np.array([4, 0, 6, 2, 1], np.int32), sum(count for count, _ in chunks)
    taps, bias = (rounded(rng.normal(size=shape) / 2, dtype) for shape in ((num_taps, width), (width,)))
    projected = rounded(rng.normal(size=(tokens + padding, 3 * width if gated else width)), dtype)
    states = np.full((8, _LAYER + 1, num_taps - 1, width), np.nan)
    want, ends, starts = np.empty((tokens, width)), states.copy(), np.cumsum([0] + [count for count, _ in chunks])
    for row, start, (count, context) in zip(rows, starts, chunks, strict=False):
        own = projected[start : start + count]
        before, after, x = np.split(own, 3, axis=1) if gated else (1.0, 1.0, own)
        known = min(context - count, num_taps - 1)
        state = states[row, _LAYER]
        state[num_taps - 1 - known :] = rounded(rng.normal(size=(known, width)), dtype)
        inputs = np.concatenate([np.nan_to_num(state), rounded(before * x, dtype)])
        sums = sum((taps[tap] * inputs[tap : tap + count] for tap in range(num_taps)), start=bias)
        want[start : start + count] = after * rounded(sums, dtype) if gated else sums / (1 + np.exp(-sums))
        ends[row, _LAYER] = inputs[count:]
    got, new = jax.jit(convolve)(
        *(jnp.asarray(array, dtype) for array in (projected, taps, bias, states)),
        jnp.int32(_LAYER),
        jnp.asarray(starts, jnp.int32),
        jnp.asarray([context for _, context in chunks], jnp.int32),
        jnp.asarray(rows),
        jnp.int32(len(chunks)),
    )
    compare(got, want, dtype)
    np.testing.assert_array_equal(np.asarray(new).astype(np.float64), ends)


Weights = Callable[[np.ndarray], tuple[Any, Callable[[int, np.ndarray], np.ndarray]]]
"""(which experts have rows) -> weights of all experts, and a function for their numbers.

Weights of experts without rows are NaN. The function is (expert, columns) -> the numbers [columns, inputs] of some of
its outputs in float64.
"""


def prove_expert_product(
    expert_product: Callable[..., Any],
    *,
    experts: int,
    inputs: int,
    outputs: int,
    rows: int,
    dtype: str,
    weights: Weights | None = None,
) -> None:
    """Multiply rows with the weights of their experts; raise AssertionError if a result is wrong.

    ``weights``: None: numbers of ``dtype``.

    Some rows are of no expert, and some experts have no rows: these are NaN. Then fewer rows of each expert are
    multiplied, at other places and perhaps in other tiles, and must have the same bits.
    """
    counts = _rows_of_experts(experts, rows)
    starts = np.cumsum([0, *counts], dtype=np.int32)
    x = jax.random.normal(jax.random.key(0), (rows, inputs), dtype).at[starts[-1] :].set(jnp.nan)
    arrays, numbers = (weights or _plain_weights(outputs, inputs, dtype))(counts > 0)
    product = jax.jit(expert_product)
    got = np.asarray(product(x, arrays, jnp.int32(0), jnp.asarray(starts)))[: starts[-1]]
    assert np.isfinite(got).all(), "a product of experts gives numbers that are not finite"
    columns = np.unique(np.linspace(0, outputs - 1, _COMPARED_COLUMNS).astype(int))
    for expert in np.argsort(-counts, kind="stable")[:_COMPARED_EXPERTS]:
        of_expert = slice(starts[expert], starts[expert + 1])
        wanted = rounded(x[of_expert], dtype) @ numbers(int(expert), columns).T
        error = np.abs(got[of_expert, columns] - wanted).max(initial=0.0)
        assert error <= _EXPERTS_TOLERANCE, f"a product of experts is wrong by {error} in {dtype}"
    chosen = np.flatnonzero(np.arange(starts[-1]) % 3)
    fewer = np.searchsorted(chosen, starts).astype(np.int32)
    fewer_products = np.asarray(product(x[chosen], arrays, jnp.int32(0), jnp.asarray(fewer)))
    assert np.array_equal(fewer_products, got[chosen]), "a product of experts has other bits among other rows"


def _rows_of_experts(experts: int, rows: int) -> np.ndarray:
    """A quarter of the rows is of one expert, some are of none, and every fifth expert but the first has no rows."""
    owners = np.random.default_rng(0).integers(experts, size=rows - rows // 9)
    owners[: rows // 4] = experts // 2
    owners = owners[(owners % 5 != 4) | (owners == experts // 2)]
    return np.bincount(owners, minlength=experts)


def _plain_weights(outputs: int, inputs: int, dtype: str) -> Weights:
    def make(used: np.ndarray) -> tuple[jax.Array, Callable[[int, np.ndarray], np.ndarray]]:
        weights = _expert_weights(jax.random.key(1), jnp.asarray(used), outputs, inputs, dtype)
        return weights, lambda expert, columns: rounded(weights[0, expert, columns], dtype)

    return make


@partial(jax.jit, static_argnums=(2, 3, 4))
def _expert_weights(key: jax.Array, used: jax.Array, outputs: int, inputs: int, dtype: str) -> jax.Array:
    """[1, experts, outputs, inputs], NaN of experts that are not used."""
    numbers = jax.random.normal(key, (1, len(used), outputs, inputs), dtype) * jnp.asarray(inputs**-0.5, dtype)
    return jnp.where(used[None, :, None, None], numbers, jnp.asarray(jnp.nan, dtype))


def rounded(x: np.ndarray | jax.Array, dtype: str) -> np.ndarray:
    """The nearest numbers of ``dtype``, in float64."""
    return np.asarray(jnp.asarray(x, dtype)).astype(np.float64)


def compare(got: jax.Array, want: np.ndarray, dtype: str) -> None:
    """Raise AssertionError if the largest error of the first rows, which are wanted, is over the tolerance of
    ``dtype``."""
    error = np.abs(np.asarray(got)[: len(want)].astype(np.float64) - want).max()
    assert error <= TOLERANCE[dtype], f"wrong by {error} in {dtype}"


def _attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, window: int | None, soft_cap: float | None, sinks: np.ndarray | None
) -> np.ndarray:
    """Every query of every row from the definition, float64; contexts are end to end in k and v."""
    out = np.empty((*q.shape[:2], v.shape[2]))
    group = q.shape[1] // k.shape[1]
    token = context_start = 0
    for length, context in _ROWS:
        for position in range(context - length, context):
            first = 0 if window is None else max(0, position - window + 1)
            seen = slice(context_start + first, context_start + position + 1)
            for head in range(q.shape[1]):
                scores = k[seen, head // group] @ q[token, head] * q.shape[2] ** -0.5
                weights = np.exp(scores if soft_cap is None else soft_cap * np.tanh(scores / soft_cap))
                total = weights.sum() + (0 if sinks is None else np.exp(sinks[head]))
                out[token, head] = weights @ v[seen, head // group] / total
            token += 1
        context_start += context
    return out
