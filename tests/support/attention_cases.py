"""Ragged batches for the attention kernels' tests, and the right answer to them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.kv_codes import CODE_DTYPES, encode
from tests.support.kv_codes import code_values, nearest_codes

TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}
LAYERS, LAYER = 3, 1


@dataclass(frozen=True)
class Case:
    """Rows as (query_len, context_len), those of one query first."""

    rows: tuple[tuple[int, int], ...]
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    block_size: int = 16
    window: int | None = None
    dtype: str = "float32"
    padding: int = 3
    soft_cap: float | None = None
    sinks: bool = False
    window_operand: bool = False
    """Whether the window is an array that the program takes."""
    value_dim: int | None = None
    """Values are so many numbers of the keys, in a cache of one part; None: it has K and V."""
    codes: str | None = None
    """What the cache's codes are, int8 or fp8; None: it has numbers."""

    @property
    def parts(self) -> int:
        return 2 if self.value_dim is None else 1


@dataclass(frozen=True)
class Inputs:
    q: np.ndarray
    cache: np.ndarray
    tables: np.ndarray
    starts: np.ndarray
    lens: np.ndarray
    num_decodes: int
    sinks: np.ndarray


def make_inputs(case: Case, seed: int = 0) -> Inputs:
    """Zero-mean values; NaN in every block that no row may read, and past each context in its last block.

    The first query head's sink is minus infinity, which weighs nothing.
    """
    rng = np.random.default_rng(seed)
    bs, K, D = case.block_size, case.kv_heads, case.head_dim
    per_row = [-(-context // bs) for _, context in case.rows]
    num_blocks = sum(per_row) + 4
    cache = np.full((num_blocks, LAYERS, case.parts, K, bs, D), np.nan, np.float32)
    ids = rng.permutation(num_blocks - 1)  # the last block, where a wrapped index would land, stays NaN
    R = len(case.rows) + case.padding
    tables = np.full((R, max(per_row, default=0) + 2), num_blocks - 1, np.int32)
    at = 0
    for row, n in enumerate(per_row):
        tables[row, :n] = ids[at : at + n]
        cache[ids[at : at + n], LAYER] = rng.normal(size=(n, case.parts, K, bs, D))
        at += n
        if n:
            last = cache[tables[row, n - 1], LAYER]
            last[:, :, case.rows[row][1] - (n - 1) * bs :] = np.nan
    lens, starts = lens_and_starts(case)
    T = max(starts[-1] + case.padding, R)
    q = rng.normal(size=(T, case.heads, D)).astype(np.float32)
    sinks = rng.normal(size=case.heads).astype(np.float32)
    sinks[0] = -np.inf
    return Inputs(q, cache, tables, starts, lens, sum(length == 1 for length, _ in case.rows), sinks)


def lens_and_starts(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """context_lens [R] and query_starts [R + 1] of the rows and their padding."""
    R = len(case.rows) + case.padding
    lens, starts = np.zeros(R, np.int32), np.zeros(R + 1, np.int32)
    lens[: len(case.rows)] = [context for _, context in case.rows]
    starts[1:] = np.cumsum([length for length, _ in case.rows] + [0] * case.padding)
    return lens, starts


def run(function: Callable[..., jax.Array], case: Case, inputs: Inputs) -> np.ndarray:
    """The kernel's answer for tokens of rows, in float32, which holds every bit of the other dtypes."""
    arguments, static, operands = arguments_of(case, inputs)
    out = jax.jit(function, static_argnames=tuple(static))(*arguments, **static, **operands)
    return answers(out, case, inputs)


def compiled(function: Callable[..., jax.Array], case: Case, inputs: Inputs) -> Callable[[Case, Inputs], np.ndarray]:
    """Compile the kernel, and return it as ``run`` for cases and inputs of these shapes."""
    arguments, static, operands = arguments_of(case, inputs)
    program = jax.jit(function, static_argnames=tuple(static)).lower(*arguments, **static, **operands).compile()

    def call(case: Case, inputs: Inputs) -> np.ndarray:
        arguments, _, operands = arguments_of(case, inputs)
        return answers(program(*arguments, **operands), case, inputs)

    return call


def arguments_of(case: Case, inputs: Inputs) -> tuple[tuple[jax.Array, ...], dict[str, Any], dict[str, Any]]:
    """The kernel's arguments: by place, static, and arrays by name."""
    static: dict[str, Any] = {"scale": case.head_dim**-0.5, "soft_cap": case.soft_cap}
    static |= {} if case.value_dim is None else {"value_dim": case.value_dim}
    operands = {"sinks": jnp.asarray(inputs.sinks)} if case.sinks else {}
    if case.window_operand:
        operands["window"] = jnp.int32(2**30 if case.window is None else case.window)
    else:
        static["window"] = case.window
    arguments = (
        jnp.asarray(inputs.q, case.dtype),
        cache_of(case, inputs),
        jnp.int32(LAYER),
        jnp.asarray(inputs.tables),
        jnp.asarray(inputs.starts),
        jnp.asarray(inputs.lens),
        jnp.int32(len(case.rows)),
        jnp.int32(inputs.num_decodes),
    )
    return arguments, static, operands


def answers(out: jax.Array, case: Case, inputs: Inputs) -> np.ndarray:
    """The outputs of tokens of rows, in float32."""
    return np.asarray(out.astype(jnp.float32))[: inputs.starts[len(case.rows)]]


def cache_of(case: Case, inputs: Inputs) -> jax.Array:
    """The cache as a kernel gets it."""
    return encode(jnp.asarray(inputs.cache, case.dtype), CODE_DTYPES.get(case.codes or "", case.dtype))


def expected(case: Case, inputs: Inputs) -> np.ndarray:
    """Every query of every row, float64, from the definition, over what the codes of the cache stand for."""
    q = np.asarray(jnp.asarray(inputs.q, case.dtype).astype(jnp.float32), np.float64)
    cache = np.asarray(jnp.asarray(inputs.cache, case.dtype).astype(jnp.float32), np.float64)
    if case.codes is not None:
        codes, scale = nearest_codes(cache, case.codes)
        stands_for = jnp.asarray(code_values(case.codes)[codes] * scale, jnp.float32)
        cache = np.asarray(stands_for.astype(case.dtype).astype(jnp.float32), np.float64)
    group = case.heads // case.kv_heads
    value_dim = case.value_dim or case.head_dim
    out = np.full((*q.shape[:2], value_dim), np.nan)
    for row, (length, context) in enumerate(case.rows):
        for i in range(length):
            position = context - length + i
            first = 0 if case.window is None else max(0, position - case.window + 1)
            seen = np.arange(first, position + 1)
            kv = cache[inputs.tables[row, seen // case.block_size], LAYER, :, :, seen % case.block_size]
            keys, values = (
                kv[:, 0].swapaxes(0, 1),
                kv[:, -1].swapaxes(0, 1)[..., :value_dim],
            )  # [heads of K and V, tokens, head_dim]
            token = inputs.starts[row] + i
            of_group = q[token].reshape(case.kv_heads, group, case.head_dim)
            scores = of_group @ keys.swapaxes(1, 2) * case.head_dim**-0.5
            if case.soft_cap is not None:
                scores = case.soft_cap * np.tanh(scores / case.soft_cap)
            top = scores.max(axis=-1, keepdims=True)
            weights = np.exp(scores - top)
            sinks = np.exp(inputs.sinks.reshape(case.kv_heads, group, 1) - top) if case.sinks else 0.0
            found = weights @ values / (weights.sum(axis=-1, keepdims=True) + sinks)
            out[token] = found.reshape(case.heads, value_dim)
    return out


def check(function: Callable[..., jax.Array], case: Case, seed: int = 0) -> None:
    inputs = make_inputs(case, seed)
    got = run(function, case, inputs)
    np.testing.assert_allclose(got, expected(case, inputs)[: len(got)], atol=TOLERANCE[case.dtype], rtol=0)


def one_row(case: Case, inputs: Inputs, row: int) -> tuple[Case, Inputs]:
    """The same row in a batch of its own, without padding."""
    length, context = case.rows[row]
    own = slice(inputs.starts[row], inputs.starts[row + 1])
    starts = np.array([0, length], np.int32)
    tables, lens = inputs.tables[row : row + 1], inputs.lens[row : row + 1]
    alone = replace(case, rows=((length, context),), padding=0)
    return alone, Inputs(inputs.q[own], inputs.cache, tables, starts, lens, int(length == 1), inputs.sinks)
