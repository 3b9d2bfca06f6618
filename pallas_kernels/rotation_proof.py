"""Whether queries, keys and values are right where they will run: against float64, and a row's bits in any company."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.kv_codes import CODE_DTYPES, apart, by_rows, decode, encode, head_dim_of
from pallas_kernels.proof import TOLERANCE, rounded
from pallas_kernels.row_proof import prove_bits

_COMPARED_ROWS = 64
_CHUNK = 5
"""Tokens of a row of the batch: so few that most rows begin at no multiple of what kernels copy together."""
_LAYER, _EPS = 1, 1e-5
_HALF_STEPS = {"int8": 254, "fp8": 28}
"""Half steps between the largest codes that the largest number of a row has."""


def prove_rotation(
    rotate_write: Callable[..., Any],
    plan_attention: Callable[..., Any] | None,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    pairs: int,
    norm: str | None,
    gated: bool,
    scaled: bool,
    block_size: int,
    dtype: str,
    budgets: Sequence[int],
    counts: Sequence[int],
    codes: str | None = None,
) -> None:
    """Make queries, keys and values of random rows; raise AssertionError if one is wrong, or has other bits elsewhere.

    ``pairs``, ``norm``, ``gated`` and ``scaled`` are as in jaxgen's RotationShape; ``budgets`` and ``counts`` as for
    ``prove_bits``. ``plan_attention``: makes the plan by which queries are laid out, or None. ``codes``:
    int8 or fp8, for a cache of these with scales apart; None: it has numbers.
    """
    rng, tokens, first_key = np.random.default_rng(0), max(budgets), heads * (1 + gated)
    size, width = head_dim, (first_key + 2 * kv_heads) * head_dim
    slots = rng.permutation((-(-tokens // block_size) + 1) * block_size).astype(np.int32)
    shape = (len(slots) // block_size, _LAYER + 1, 2, kv_heads, block_size, size)
    of_cache: Any = dtype if codes is None else CODE_DTYPES[codes]
    turns = rng.uniform(0, 2 * np.pi, size=(tokens, pairs))
    parts = rounded(rng.normal(size=(tokens, width)), dtype), np.cos(turns), np.sin(turns)
    rows = np.concatenate([*parts, rng.uniform(1, 1.2, size=(tokens, 1))], axis=1).astype(np.float32)
    weights = rounded(rng.uniform(0.25, 0.75, size=(2, size)), norm or "float32")
    about: dict[str, Any] = {"heads": heads, "first_key": first_key, "eps": _EPS}

    def run(x: jax.Array, count: jax.Array, slots: jax.Array, weights: jax.Array) -> jax.Array:
        """Return the queries, keys and values of each row, and a number that is NaN if others were written."""
        x, cos, sin, scale = jnp.split(x, (width, width + pairs, width + 2 * pairs), axis=1)
        budget, empty = len(x), encode(jnp.full(shape, jnp.nan, dtype), of_cache)
        empty = empty if codes is None else apart(empty)
        at = jnp.where(jnp.arange(budget) < count, slots[:budget], len(slots))
        norms = None if norm is None else tuple(weights.astype(norm))
        angles = (cos[:, None], sin[:, None]) if pairs else None
        plan = None if plan_attention is None else _plan(plan_attention, budget, count, heads, empty)
        given = x.astype(dtype), empty, jnp.int32(_LAYER), at, count, angles, norms
        q, cache = rotate_write(*given, scale[..., None] if scaled else None, **about, plan=plan)
        if plan is not None:
            q = q.rows[:, plan.packing.place[:, None] + jnp.arange(heads // kv_heads)].swapaxes(0, 1)
        if codes is not None:
            cache = decode(by_rows(cache), dtype)
        block, offset = at // block_size, at % block_size
        kv = cache.at[block, _LAYER, :, :, offset].get(mode="clip")
        others = cache.at[block, _LAYER, :, :, offset].set(jnp.nan, mode="drop")
        spoiled = jnp.where(jnp.isfinite(others).any(), jnp.nan, 0).astype(dtype)
        return jnp.concatenate([q.reshape(budget, -1), kv.reshape(budget, -1), jnp.full((budget, 1), spoiled)], axis=1)

    arrays = jnp.asarray(slots), jnp.asarray(weights, jnp.float32)
    got = prove_bits("a rotation", run, jnp.asarray(rows), arrays, budgets, counts)[:_COMPARED_ROWS, :-1]
    of_heads = rows[:_COMPARED_ROWS, :width].astype(np.float64).reshape(-1, first_key + 2 * kv_heads, size)
    angles = [part[:_COMPARED_ROWS, None] for part in parts[1:]]
    q = _turned(of_heads[:, :heads], angles, None if norm is None else weights[0])
    k = _turned(of_heads[:, first_key : first_key + kv_heads], angles, None if norm is None else weights[1])
    if scaled:
        q = q * rows[:_COMPARED_ROWS, -1:, None]
    wanted = np.concatenate([q, k, of_heads[:, first_key + kv_heads :]], axis=1).reshape(len(got), -1)
    allowed = np.full((len(got), heads + 2 * kv_heads, size), 4 * TOLERANCE[dtype])
    if codes is not None:
        of_cached = np.abs(wanted).reshape(allowed.shape)[:, heads:]
        allowed[:, heads:] += of_cached.max(axis=-1, keepdims=True) / _HALF_STEPS[codes]
    error = np.abs(got.astype(np.float64) - wanted)
    assert (error <= allowed.reshape(error.shape)).all(), f"a rotation is wrong by {error.max():.3g}"


def _plan(plan_attention: Callable[..., Any], budget: int, count: jax.Array, heads: int, cache: jax.Array) -> Any:
    """Return the plan of a step whose tokens are rows of _CHUNK tokens, and one of the rest."""
    starts = jnp.minimum(jnp.arange(-(-budget // _CHUNK) + 1) * _CHUNK, count)
    q = jnp.zeros((budget, heads, head_dim_of(cache.shape[-1], cache.dtype)), jnp.bfloat16)
    return plan_attention(q, cache, starts, starts[1:] - starts[:-1], -(-count // _CHUNK), jnp.int32(0))


def _turned(x: np.ndarray, angles: list[np.ndarray], weight: np.ndarray | None) -> np.ndarray:
    """Return heads with their norm, rotated, in float64."""
    if weight is not None:
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + _EPS) * weight
    (cos, sin), half = angles, angles[0].shape[-1]
    first, second, rest = np.split(x, (half, 2 * half), axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)
