"""Whether a kernel of gated delta nets is right where it will run: what it computes, once, against the recurrence."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.gated_delta import EPS, DeltaState
from pallas_kernels.proof import compare, rounded

_LENGTHS = (1, 30, 75)
"""Tokens of each sequence."""
_CUTS = ((1, 1, 1), (1, 20, 30), (1, 30, 64), (1, 30, 65), (1, 30, 75))
"""Tokens of each sequence that are computed after each step: pieces that begin and end within spans and at their ends,
and decodes."""


def exact_gated_delta(
    x: np.ndarray, a: np.ndarray, b: np.ndarray, a_log: np.ndarray, dt_bias: np.ndarray, *, key_heads: int, key_dim: int
) -> np.ndarray:
    """Return what the tokens of a sequence read, [tokens, heads, values], token after token in float64."""
    tokens, heads = a.shape
    queries, keys, values = np.split(x, (key_heads * key_dim, 2 * key_heads * key_dim), axis=1)
    q, k = (_unit(part.reshape(tokens, key_heads, key_dim)).repeat(heads // key_heads, 1) for part in (queries, keys))
    v = values.reshape(tokens, heads, -1)
    fade, beta = np.exp(-np.exp(a_log) * np.logaddexp(0, a + dt_bias)), 1 / (1 + np.exp(-b))
    matrix, out = np.zeros((heads, key_dim, v.shape[2])), np.empty(v.shape)
    for t in range(tokens):
        matrix *= fade[t, :, None, None]
        change = beta[t, :, None] * (v[t] - np.einsum("hkv,hk->hv", matrix, k[t]))
        matrix += k[t, :, :, None] * change[:, None]
        out[t] = np.einsum("hkv,hk->hv", matrix, q[t]) * key_dim**-0.5
    return out


def prove_gated_delta(
    gated_delta: Callable[..., Any], *, key_heads: int, heads: int, key_dim: int, value_dim: int, span: int, dtype: str
) -> None:
    """Compute sequences in pieces, with states that begin as NaN; raise AssertionError if a result is wrong, or has
    other bits than in one piece."""
    rng = np.random.default_rng(0)
    width = 2 * key_heads * key_dim + heads * value_dim
    a_log, dt_bias = (rounded(rng.normal(size=heads) * 0.5 - 1, "float32") for _ in range(2))
    given = [[rounded(rng.normal(size=(length, size)), dtype) for size in (width, heads, heads)] for length in _LENGTHS]
    want = [exact_gated_delta(x, a, b, a_log, dt_bias, key_heads=key_heads, key_dim=key_dim) for x, a, b in given]
    weights, run = [jnp.asarray(array, jnp.float32) for array in (a_log, dt_bias)], jax.jit(gated_delta)
    empty = empty_state(len(_LENGTHS) + 1, 2, key_heads, heads, key_dim, value_dim, span, np.nan)
    in_pieces, whole = (_computed(run, given, weights, empty, cuts, dtype) for cuts in (_CUTS, [_LENGTHS]))
    for one, other, exact in zip(in_pieces, whole, want, strict=True):
        compare(jnp.asarray(one), exact, dtype)
        assert (one == other).all(), "a sequence in pieces has other bits than in one piece"


def _computed(
    run: Callable[..., Any],
    given: list[list[np.ndarray]],
    weights: list[jax.Array],
    state: DeltaState,
    cuts: Sequence[Sequence[int]],
    dtype: str,
) -> list[np.ndarray]:
    """Return what the tokens of each sequence read, with these numbers of tokens computed after each step."""
    done = [0] * len(given)
    reads: list[list[np.ndarray]] = [[] for _ in given]
    for after in cuts:
        chunks = [(row, first, end) for row, (first, end) in enumerate(zip(done, after, strict=True)) if end > first]
        lengths, padding = [end - first for _, first, end in chunks], [0] * (len(given) - len(chunks))
        arrays = []
        for part in range(3):
            pieces = [given[row][part][first:end] for row, first, end in chunks]
            array = np.full((sum(_LENGTHS), pieces[0].shape[1]), np.nan)
            array[: sum(lengths)] = np.concatenate(pieces)
            arrays.append(jnp.asarray(array, dtype))
        got, state = run(
            *arrays,
            *weights,
            state,
            jnp.int32(1),
            jnp.asarray(np.cumsum([0, *lengths, *padding]), jnp.int32),
            jnp.asarray([end for _, _, end in chunks] + padding, jnp.int32),
            jnp.asarray([row + 1 for row, _, _ in chunks] + padding, jnp.int32),
            jnp.int32(len(chunks)),
        )
        for (row, _, _), read in zip(chunks, np.split(np.asarray(got), np.cumsum(lengths)), strict=False):
            reads[row].append(read)
        done = list(after)
    return [np.concatenate(pieces) for pieces in reads]


def empty_state(
    rows: int, layers: int, key_heads: int, heads: int, key_dim: int, value_dim: int, span: int, blank: float = 0.0
) -> DeltaState:
    """Return the state of rows that have computed nothing. ``blank``: what it is filled with."""
    shapes = (
        (heads, key_dim, value_dim),
        (key_heads, key_dim, span),
        (heads, span, value_dim),
        (heads, span),
    )
    return DeltaState(*(jnp.full((rows, layers, *shape), blank, jnp.float32) for shape in shapes))


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + EPS)
