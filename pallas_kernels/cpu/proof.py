"""Compute every kernel of a library once and compare with the definition. Runs in a process of its own: a library may
crash."""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.cpu.library import DTYPES, Library
from pallas_kernels.packed_product import pack

TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}
_ROWS = ((1, 70), (20, 90), (3, 3))
"""(query tokens, context) of each row."""
_HEADS, _KV_HEADS, _HEAD_DIM, _BLOCK_SIZE, _LAYER, _WINDOW = 6, 2, 40, 16, 1, 50


def prove(path: str) -> None:
    """Raise AssertionError if any result is wrong."""
    jax.config.update("jax_platforms", "cpu")
    library = Library.open(Path(path), "proof")
    for dtype in DTYPES:
        _prove_cache_kernels(library, dtype)
        _prove_product(library, dtype)


def _prove_cache_kernels(library: Library, dtype: str) -> None:
    """Write the rows' keys and values, attend to them."""
    rng = np.random.default_rng(0)
    per_row = [math.ceil(context / _BLOCK_SIZE) for _, context in _ROWS]
    num_blocks = sum(per_row) + 1
    blocks = np.split(rng.permutation(num_blocks)[:-1], np.cumsum(per_row)[:-1])
    tables = np.zeros((len(_ROWS), max(per_row)), np.int32)
    slots = []
    for row, (ids, (_, context)) in enumerate(zip(blocks, _ROWS, strict=True)):
        tables[row, : len(ids)] = ids
        slots.append(ids[np.arange(context) // _BLOCK_SIZE] * _BLOCK_SIZE + np.arange(context) % _BLOCK_SIZE)
    tokens = sum(context for _, context in _ROWS)
    k, v = (_rounded(rng.normal(size=(tokens, _KV_HEADS, _HEAD_DIM)), dtype) for _ in range(2))
    starts = np.cumsum([0] + [length for length, _ in _ROWS], dtype=np.int32)
    q = _rounded(rng.normal(size=(starts[-1], _HEADS, _HEAD_DIM)), dtype)
    cache = library.write_kv(
        jnp.full((num_blocks, _LAYER + 1, 2, _KV_HEADS, _BLOCK_SIZE, _HEAD_DIM), jnp.nan, dtype),
        jnp.int32(_LAYER),
        jnp.asarray(k, dtype),
        jnp.asarray(v, dtype),
        jnp.asarray(np.concatenate(slots), jnp.int32),
    )
    for window in (None, _WINDOW):
        out = library.ragged_paged_attention(
            jnp.asarray(q, dtype),
            cache,
            jnp.int32(_LAYER),
            jnp.asarray(tables),
            jnp.asarray(starts),
            jnp.asarray([context for _, context in _ROWS], jnp.int32),
            jnp.int32(len(_ROWS)),
            jnp.int32(1),
            scale=_HEAD_DIM**-0.5,
            window=window,
        )
        _compare(out, _attention(q, k, v, window), dtype)


def _prove_product(library: Library, dtype: str) -> None:
    rng = np.random.default_rng(0)
    inputs, outputs, tokens = 301, 100, 9
    weight = _rounded(rng.normal(size=(2, outputs, inputs)) * inputs**-0.5, dtype)
    x = _rounded(rng.normal(size=(tokens + 2, inputs)), dtype)
    packed = pack(jnp.asarray(weight, dtype))
    y = library.packed_product(jnp.asarray(x, dtype), packed, jnp.int32(1), jnp.int32(tokens), out_features=outputs)
    want = x @ weight[1].T
    want[tokens:] = 0
    _compare(y, want, "float32")


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, window: int | None) -> np.ndarray:
    """Every query of every row from the definition, float64; contexts are end to end in k and v."""
    out = np.empty(q.shape)
    token = context_start = 0
    for length, context in _ROWS:
        for position in range(context - length, context):
            first = 0 if window is None else max(0, position - window + 1)
            seen = slice(context_start + first, context_start + position + 1)
            for head in range(_HEADS):
                kv_head = head // (_HEADS // _KV_HEADS)
                weights = np.exp(k[seen, kv_head] @ q[token, head] * _HEAD_DIM**-0.5)
                out[token, head] = weights @ v[seen, kv_head] / weights.sum()
            token += 1
        context_start += context
    return out


def _rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    return np.asarray(jnp.asarray(x, dtype)).astype(np.float64)


def _compare(got: jax.Array, want: np.ndarray, dtype: str) -> None:
    error = np.abs(np.asarray(got).astype(np.float64) - want).max()
    assert error <= TOLERANCE[dtype], f"wrong by {error} in {dtype}"
