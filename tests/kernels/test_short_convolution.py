"""Short convolution, gated and plain: the native kernel and its twin, against a loop over whole sequences."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.proof import prove_short_convolution
from pallas_kernels.short_convolution import short_convolution_ref
from tests.support.native import native

DTYPES = ["float32", "bfloat16"]
NAMES = ["native", "ref"]
WIDTH, TAPS, LAYER = 37, 3, 1
LENGTHS = (1, 2, 9, 14)
SPARE = 2
"""States of no sequence, behind those of the rows."""
T, R = 12, 5
"""Tokens and chunks that a call has room for."""


def kernel(name: str) -> Any:
    return jax.jit(native().short_convolution if name == "native" else short_convolution_ref)


def draw(dtype: str) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Rows of each sequence, taps and a bias."""
    rng = np.random.default_rng(0)
    sequences = [rng.normal(size=(length, 3 * WIDTH)).astype(jnp.dtype(dtype)) for length in LENGTHS]
    taps, bias = (rng.normal(size=shape).astype(jnp.dtype(dtype)) for shape in ((TAPS, WIDTH), (WIDTH,)))
    return sequences, taps, bias


def cut(seed: int) -> list[list[tuple[int, int, int]]]:
    """Steps of chunks (sequence, start, end), each of at most T tokens, that compute all sequences."""
    rng, done, steps = np.random.default_rng(seed), dict.fromkeys(range(len(LENGTHS)), 0), []
    while open_ones := [number for number in done if done[number] < LENGTHS[number]]:
        step, room = [], T
        for number in rng.permutation(open_ones)[: rng.integers(1, R + 1)]:
            count = min(int(rng.integers(1, 6)), LENGTHS[number] - done[number], room)
            if count:
                step.append((int(number), done[number], done[number] + count))
                done[number], room = done[number] + count, room - count
        steps.append(step)
    return steps


def run(
    name: str, dtype: str, steps: list[list[tuple[int, int, int]]], *, with_bias: bool = True, gated: bool = True
) -> list[np.ndarray]:
    """Outputs of all sequences. Padding, and states before their first chunk, are NaN."""
    sequences, taps, bias = draw(dtype)
    sequences = [rows if gated else rows[:, :WIDTH] for rows in sequences]
    convolve, nan = kernel(name), jnp.asarray(np.nan, dtype)
    states = jnp.full((len(LENGTHS) + SPARE, LAYER + 1, TAPS - 1, WIDTH), nan, dtype)
    outs = [np.full((length, WIDTH), np.nan, jnp.dtype(dtype)) for length in LENGTHS]
    for step in steps:
        rows = np.full(R, len(LENGTHS), np.int32)
        starts, contexts, projected = (
            np.zeros(R + 1, np.int32),
            np.zeros(R, np.int32),
            np.full((T, 3 * WIDTH if gated else WIDTH), nan),
        )
        for r, (number, start, end) in enumerate(step):
            rows[r], contexts[r], starts[r + 1 :] = len(LENGTHS) - 1 - number, end, starts[r] + end - start
            projected[starts[r] : starts[r + 1]] = sequences[number][start:end]
        chunks = (jnp.asarray(array) for array in (starts, contexts, rows))
        given = jnp.asarray(projected, dtype), jnp.asarray(taps), jnp.asarray(bias) if with_bias else None
        out, states = convolve(*given, states, jnp.int32(LAYER), *chunks, jnp.int32(len(step)))
        for r, (number, start, end) in enumerate(step):
            outs[number][start:end] = np.asarray(out)[starts[r] : starts[r + 1]]
    assert np.isnan(np.asarray(states, np.float32)[len(LENGTHS) :]).all()
    assert np.isnan(np.asarray(states, np.float32)[:, 1 - LAYER]).all()
    return outs


def whole(dtype: str, bias: float, *, gated: bool) -> list[np.ndarray]:
    """The definition in float64, whose inputs and sums are rounded as the model's dtype has them."""

    def near(x: np.ndarray) -> np.ndarray:
        return x.astype(jnp.dtype(dtype)).astype(np.float64)

    sequences, taps, of_bias = draw(dtype)
    outs = []
    for rows in sequences:
        before, after, x = np.split(rows.astype(np.float64), 3, axis=1)
        inputs = np.concatenate([np.zeros((TAPS - 1, WIDTH)), near(before * x) if gated else before])
        sums = np.stack([(inputs[t : t + TAPS] * taps.astype(np.float64)).sum(0) for t in range(len(rows))])
        sums += bias * of_bias.astype(np.float64)
        outs.append(after * near(sums) if gated else sums / (1 + np.exp(-sums)))
    return outs


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_matches_a_loop_over_whole_sequences(dtype: str, name: str) -> None:
    error = {"float32": 1e-6, "bfloat16": 2**-7}[dtype]
    for with_bias, gated in ((True, True), (False, True), (False, False)):
        got = run(name, dtype, cut(0), with_bias=with_bias, gated=gated)
        for one, want in zip(got, whole(dtype, float(with_bias), gated=gated), strict=True):
            np.testing.assert_allclose(one.astype(np.float64), want, rtol=2 * error, atol=error)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_keeps_its_bits_however_sequences_are_cut(dtype: str, name: str) -> None:
    for gated in (True, False):
        want = run(name, dtype, cut(0), gated=gated)
        for seed in (1, 2, 3):
            for one, other in zip(run(name, dtype, cut(seed), gated=gated), want, strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_twin_passes_the_proof_of_kernels(dtype: str) -> None:
    for gated in (True, False):
        prove_short_convolution(short_convolution_ref, dtype=dtype, gated=gated)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"context_lens": [0, 0]}, "a chunk is longer than its context"),
        ({"query_starts": [0, 2, 9]}, "do not ascend within the tokens"),
        ({"query_starts": [1, 2, 3]}, "does not start at token 0"),
        ({"rows": [0, 3]}, "a chunk's state does not exist"),
        ({"layer": 2}, "the layer does not exist"),
        ({"num_rows": 3}, "more chunks than there are rows"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], says: str) -> None:
    chunks = {"layer": 0, "query_starts": [0, 2, 4], "context_lens": [2, 5], "rows": [0, 1], "num_rows": 2} | changed
    arrays = jnp.zeros((4, 12)), jnp.zeros((3, 4)), None, jnp.zeros((3, 2, 2, 4))
    with pytest.raises(jax.errors.JaxRuntimeError, match=says):
        jax.block_until_ready(kernel("native")(*arrays, *(jnp.asarray(value, jnp.int32) for value in chunks.values())))


def test_other_dtypes_are_refused() -> None:
    arrays = jnp.zeros((4, 12), jnp.float16), jnp.zeros((3, 4)), None, jnp.zeros((3, 2, 2, 4))
    rows = jnp.zeros(2, jnp.int32)
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        native().short_convolution(*arrays, jnp.int32(0), jnp.zeros(3, jnp.int32), rows, rows, jnp.int32(0))
