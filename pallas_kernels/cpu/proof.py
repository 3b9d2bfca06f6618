"""Compute every kernel of a part once and compare with the definition. Runs in a process of its own: a library may
crash."""

import math
import os
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.activations import ACTIVATIONS, GATED
from pallas_kernels.cpu.library import Library
from pallas_kernels.cpu.parts import CONVOLUTION, DTYPES, ELEMENTS, GATED_DELTA, part_of_codes, part_of_experts
from pallas_kernels.delta_proof import prove_gated_delta
from pallas_kernels.packed_product import pack
from pallas_kernels.proof import compare, prove_cache_kernels, prove_short_convolution, rounded
from pallas_kernels.quantized_product import BLOCK, GroupedCodes, default_zero, pack_codes, pack_groups


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


_EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: x * np.vectorize(math.erfc)(-x / math.sqrt(2)) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
}


def _gated(activation: str, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    if activation != "swiglu_clipped":
        return _EXACT[activation](gate) * up
    gate = np.minimum(gate, 7)
    return gate * _sigmoid(1.702 * gate) * (np.clip(up, -7, 7) + 1)


def _turned(heads: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """The first numbers of each head as pairs that are turned by their token's angles."""
    first, second, rest = np.split(heads, (angles.shape[-1], 2 * angles.shape[-1]), axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


_WEIGHTS = (
    (8, 304, ""),
    (8, 256, "zeros"),
    (4, 32, "zeros"),
    (5, 32, "minimums"),
    (6, 16, "blocks"),
    (4, 32, "blocks, minimums"),
    (2, 16, "blocks, minimums"),
)
"""(bits, group, what is stored with the scales) of weights.

A scale is for all inputs, for two groups that are rounded, or for a quarter of one; then come llama.cpp's forms.
"""


def prove(path: str, part: str) -> None:
    """Raise AssertionError if any result of the library of a part is wrong."""
    jax.config.update("jax_platforms", "cpu")
    _PROOFS[part](Library.open({part: (Path(path), "proof")}))


def _prove_dtype(library: Library, dtype: str) -> None:
    # Of vectors in part and in whole, whose values are read in place.
    for head_dim, codes in ((40, None), (64, None), (40, "fp8"), (64, "int8")):
        prove_cache_kernels(
            library.write_kv,
            library.ragged_paged_attention,
            heads=6,
            kv_heads=2,
            head_dim=head_dim,
            block_size=16,
            dtype=dtype,
            blank=np.nan,
            codes=codes,
        )
    prove_cache_kernels(
        library.write_kv,
        library.ragged_paged_attention,
        heads=6,
        kv_heads=1,
        head_dim=40,
        block_size=16,
        dtype=dtype,
        blank=np.nan,
        value_dim=32,
    )
    _prove_product(library, dtype)


def _prove_codes(library: Library, part: str) -> None:
    for dtype in DTYPES:
        for case in _WEIGHTS:
            if part_of_codes(case[0]) == part:
                _prove_quantized(library, dtype, *case)


def _prove_every_element(library: Library) -> None:
    for dtype in DTYPES:
        _prove_elements(library, dtype)
    for size in (3, 300_001):  # within a page, and whole pages with parts of two others
        assert not np.asarray(library.zeros((size,), jnp.int32)).any()


def _prove_gated_delta(library: Library) -> None:
    for dtype in DTYPES:
        prove_gated_delta(library.gated_delta, key_heads=2, heads=6, key_dim=20, value_dim=48, span=32, dtype=dtype)


def _prove_convolution(library: Library) -> None:
    for dtype in DTYPES:
        for gated in (True, False):
            prove_short_convolution(library.short_convolution, dtype=dtype, gated=gated)


def _prove_product(library: Library, dtype: str) -> None:
    rng = np.random.default_rng(0)
    inputs, outputs, tokens = 301, 100, 9
    weight = rounded(rng.normal(size=(2, outputs, inputs)) * inputs**-0.5, dtype)
    x = rounded(rng.normal(size=(tokens + 2, inputs)), dtype)
    packed = pack(jnp.asarray(weight, dtype))
    operands = jnp.asarray(x, dtype), packed, jnp.int32(1), jnp.int32(tokens)
    want = x[:tokens] @ weight[1].T
    compare(library.packed_product(*operands, out_features=outputs), want, "float32")
    residual = rounded(rng.normal(size=(len(x), outputs)), dtype)
    y = library.packed_product(*operands, jnp.asarray(residual, dtype), out_features=outputs, dtype=dtype)
    compare(y, residual[:tokens] + rounded(want, dtype), dtype)


def _prove_experts(library: Library, dtype: str) -> None:
    rng = np.random.default_rng(0)
    inputs, outputs, counts, padding = 301, 100, (0, 7, 1, 20), 3
    weight = rounded(rng.normal(size=(2, len(counts), outputs, inputs)) * inputs**-0.5, dtype)
    x = rounded(rng.normal(size=(sum(counts) + padding, inputs)), dtype)
    starts = np.cumsum([0, *counts], dtype=np.int32)
    want = np.zeros((sum(counts), outputs))
    for expert, (first, end) in enumerate(pairwise(starts)):
        want[first:end] = x[first:end] @ weight[1, expert].T
    operands = jnp.asarray(x, dtype), pack(jnp.asarray(weight, dtype)), jnp.int32(1), jnp.asarray(starts)
    for result_dtype in {"float32", dtype}:
        compare(library.expert_product(*operands, out_features=outputs, dtype=result_dtype), want, result_dtype)


def _prove_quantized(library: Library, dtype: str, bits: int, group: int, kind: str) -> None:
    """Check experts' rows, and the rows of one expert as a plain product. ``kind``: what is stored with the scales.

    The last expert has two tiles of rows for each thread, however many there are: codes are widened for them. Both are
    one program, and arrays are cut in numpy: to compile takes most of the time.
    """
    rng = np.random.default_rng(0)
    inputs, outputs, padding = 301, 100, 3
    counts = (0, 7, 1, 12 * max(2, 4 * (os.cpu_count() or 1)))
    weight, packed = _draw_quantized(rng, (2, len(counts), outputs, inputs), dtype, bits, group, kind)
    x = rounded(rng.normal(size=(sum(counts) + padding, inputs)), dtype)
    starts = np.cumsum([0, *counts], dtype=np.int32)
    first = int(starts[-2])
    residual = rounded(rng.normal(size=(len(x) - first, outputs)), dtype)

    @jax.jit
    def compute(
        x: jax.Array, weight: GroupedCodes, of_last: GroupedCodes, starts: jax.Array, rows: jax.Array, added: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        how: dict[str, Any] = {"bits": bits, "group": group, "out_features": outputs}
        layer, count = jnp.int32(1), jnp.int32(counts[-1])
        product = library.quantized_product(rows, of_last, layer, count, added, **how, dtype=dtype)
        return library.quantized_expert_product(x, weight, layer, starts, **how), product

    last = packed.each(lambda part: part[:, -1])
    rows, added = jnp.asarray(x[first:], dtype), jnp.asarray(residual, dtype)
    got, y = compute(jnp.asarray(x, dtype), packed, last, jnp.asarray(starts), rows, added)
    near, want = _rounded_inputs(x, min(group, 128)), np.zeros((sum(counts), outputs))
    for expert, (begin, end) in enumerate(pairwise(starts)):
        want[begin:end] = near[begin:end] @ weight[1, expert].T
    compare(got, want, "float32")
    compare(y, residual[: counts[-1]] + rounded(want[first:], dtype), dtype)


def _draw_quantized(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, bits: int, group: int, kind: str
) -> tuple[np.ndarray, GroupedCodes]:
    """A random weight in float64, and packed."""
    *outer, inputs = shape
    of_groups, spread, at = (*outer, -(-inputs // group)), inputs**-0.5, np.arange(inputs)
    codes = rng.integers(0, 1 << bits, shape, dtype=np.uint8)
    numbers, parts = codes.astype(np.float64), GroupedCodes(codes, rng.normal(size=of_groups) * spread / (1 << bits))
    if "minimums" in kind:
        parts = parts._replace(minimums=rng.normal(size=of_groups) * spread)
    elif "zeros" in kind:
        parts = parts._replace(zeros=rng.integers(0, 1 << bits, of_groups, dtype=np.uint8))
        numbers -= parts.zeros[..., at // group]
    else:
        numbers -= default_zero(bits)
    if "blocks" in kind:
        of_blocks = (rng.uniform(0.5, 1.5, (*outer, -(-inputs // BLOCK))) * spread / (1 << bits) / 64).astype(
            np.float16
        )
        parts = parts._replace(scales=rng.integers(-64, 64, of_groups, dtype=np.int8), block_scales=of_blocks)
        if "minimums" in kind:
            lowest = rng.integers(0, 64, of_groups, dtype=np.int8)
            parts = parts._replace(minimums=lowest, block_minimums=-of_blocks * np.float16(1 << bits - 1))

    def of_input(values: np.ndarray, blocks: np.ndarray | None) -> np.ndarray:
        scaled: np.ndarray = values[..., at // group].astype(np.float64)
        return scaled if blocks is None else scaled * blocks[..., at // BLOCK].astype(np.float64)

    if "blocks" not in kind:
        parts = parts._replace(
            scales=rounded(parts.scales, dtype),
            minimums=None if parts.minimums is None else rounded(parts.minimums, dtype),
        )
    numbers *= of_input(parts.scales, parts.block_scales)
    if parts.minimums is not None:
        numbers += of_input(parts.minimums, parts.block_minimums)
    stored = parts.each(lambda part: pack_groups(jnp.asarray(part, dtype if part.dtype == np.float64 else part.dtype)))
    return numbers, stored._replace(codes=pack_codes(codes, bits=bits)).each(np.asarray)


def _rounded_inputs(x: np.ndarray, group: int) -> np.ndarray:
    """The nearest of 255 multiples by token and group of inputs; which one is nearest, float32 decides."""
    near = np.empty_like(x)
    for first in range(0, x.shape[1], group):
        part = x[:, first : first + group].astype(np.float32)
        largest = np.abs(part).max(axis=1, keepdims=True)
        units = np.round(part * (np.float32(127) / largest))
        near[:, first : first + group] = units * (largest / np.float32(127)).astype(np.float64)
    return near


def _prove_elements(library: Library, dtype: str) -> None:
    """All in one program, which takes less time to compile than one for each."""
    rng = np.random.default_rng(1)
    width, tokens, eps = 203, 9, 1e-5
    x, weight, bias = (
        rounded(rng.normal(size=shape) * scale, dtype)
        for shape, scale in (((tokens + 2, width), 3.0), ((width,), 0.2), ((width,), 0.2))
    )
    late = rounded(rng.normal(size=width) * 0.2, "float32")
    angles = rng.uniform(0, 6, size=(tokens + 2, 1, 11))
    gate, up = rounded(rng.normal(size=(2, tokens + 2, width)) / 2, "float32")
    rms = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    centered = x - x.mean(-1, keepdims=True)
    normed = centered / np.sqrt((centered * centered).mean(-1, keepdims=True) + eps)
    want = (
        *(rms * weight, rms * late, normed * weight + bias, normed * late + bias),
        *(_EXACT[name](gate) for name in ACTIVATIONS),
        *(_gated(name, gate, up) for name in GATED),
        _turned((x / 8).reshape(len(x), 7, -1)[:, 2:6], angles),
    )

    @jax.jit
    def compute(
        x: jax.Array, weight: jax.Array, bias: jax.Array, late: jax.Array, gate: jax.Array, up: jax.Array
    ) -> Any:
        count, both = jnp.int32(tokens), jnp.concatenate([gate, up], axis=1)
        return (
            library.rms_norm(x, weight, count, eps=eps),
            library.rms_norm(x, late, count, eps=eps),
            library.layer_norm(x, weight, bias, count, eps=eps),
            library.layer_norm(x, late, bias, count, eps=eps),
            *(library.activate(gate, count, activation=name, dtype=dtype) for name in ACTIVATIONS),
            *(library.gated(both, count, activation=name, dtype=dtype) for name in GATED),
            library.rotated_heads(x / 8, turns, count, first=2, heads=4, head_dim=width // 7),
        )

    turns = jnp.asarray(np.cos(angles), "float32"), jnp.asarray(np.sin(angles), "float32")
    given = [jnp.asarray(array, dtype) for array in (x, weight, bias)]
    given += [jnp.asarray(array, jnp.float32) for array in (late, gate, up)]
    for got, exact in zip(compute(*given), want, strict=True):
        compare(got, exact[:tokens], dtype)


_PROOFS: dict[str, Callable[[Library], None]] = {
    ELEMENTS: _prove_every_element,
    GATED_DELTA: _prove_gated_delta,
    CONVOLUTION: _prove_convolution,
    **{dtype: partial(_prove_dtype, dtype=dtype) for dtype in DTYPES},
    **{part_of_experts(dtype): partial(_prove_experts, dtype=dtype) for dtype in DTYPES},
    **{part: partial(_prove_codes, part=part) for part in {part_of_codes(bits) for bits, *_ in _WEIGHTS}},
}
