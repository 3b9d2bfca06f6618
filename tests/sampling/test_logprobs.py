"""Log-probabilities of the raw model against a float64 log-softmax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgen.core.sampling_params import MAX_LOGPROBS
from jaxgen.sampling.sampler import token_logprobs

program = jax.jit(token_logprobs)


def compute(x: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    chosen, _, top, values = program(jnp.asarray(x, jnp.float32), jnp.asarray(tokens, jnp.int32))
    return np.asarray(chosen), np.asarray(top), np.asarray(values)


def ranks_of(x: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    return np.asarray(program(jnp.asarray(x, jnp.float32), jnp.asarray(tokens, jnp.int32))[1])


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    x = x - x.max(axis=1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis=1, keepdims=True)))


@pytest.mark.parametrize(
    ("rows", "vocab_size", "scale"), [(7, 301, 3.0), (3, 50_257, 3.0), (2, 131_072, 0.01), (5, 300, 100.0)]
)
def test_they_are_those_of_a_float64_log_softmax(rows: int, vocab_size: int, scale: float) -> None:
    rng = np.random.default_rng(vocab_size)
    x = (rng.normal(size=(rows, vocab_size)) * scale).astype(np.float32)
    tokens = rng.integers(0, vocab_size, rows)
    chosen, top, values = compute(x, tokens)
    expected = log_softmax(x)
    np.testing.assert_allclose(chosen, expected[np.arange(rows), tokens], rtol=1e-6, atol=1e-5)
    assert np.array_equal(top, np.argsort(-x, axis=1, kind="stable")[:, :MAX_LOGPROBS])
    np.testing.assert_allclose(values, np.take_along_axis(expected, top, 1), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(("vocab_size", "kinds"), [(301, 7), (50_257, 10**6), (131_072, 40)])
def test_a_rank_is_the_place_in_the_whole_vocabulary(vocab_size: int, kinds: int) -> None:
    """Also where many tokens are as probable: with few ``kinds`` of logits."""
    rng = np.random.default_rng(vocab_size)
    x = rng.integers(0, kinds, (6, vocab_size)).astype(np.float32)
    x[5, : vocab_size // 2] = -np.inf
    order = np.argsort(-x, axis=1, kind="stable")
    places = np.argsort(order, axis=1)
    for tokens in (rng.integers(0, vocab_size, 6), order[:, 0], order[:, 19], order[:, -1]):
        assert np.array_equal(ranks_of(x, tokens), 1 + places[np.arange(6), tokens])


def test_large_common_offsets_cost_no_precision() -> None:
    x = np.random.default_rng(0).integers(-8, 8, (3, 500)).astype(np.float32)
    low, high = compute(x, np.arange(3)), compute(x + 65536.0, np.arange(3))
    for a, b in zip(low, high, strict=True):
        assert np.array_equal(a, b)


def test_a_row_depends_on_no_other_row() -> None:
    x = np.random.default_rng(1).normal(size=(16, 1003)).astype(np.float32)
    x[9] = x[2]
    chosen, top, values = compute(x, np.full(16, 5))
    assert chosen[9].tobytes() == chosen[2].tobytes()
    assert top[9].tobytes() == top[2].tobytes()
    assert values[9].tobytes() == values[2].tobytes()
    again = compute(np.roll(x, 3, axis=0), np.full(16, 5))
    assert np.roll(chosen, 3).tobytes() == again[0].tobytes()
    assert np.roll(values, 3, axis=0).tobytes() == again[2].tobytes()


def test_a_vocabulary_smaller_than_what_is_wanted() -> None:
    chosen, top, values = compute(np.array([[0.0, np.log(3.0), 0.0]]), np.array([1]))
    np.testing.assert_allclose(chosen, np.log([0.6]), atol=1e-6)
    assert top.tolist() == [[1, 0, 2]]
    np.testing.assert_allclose(values, np.log([[0.6, 0.2, 0.2]]), atol=1e-6)


def test_nan_and_infinities() -> None:
    nan, inf = np.nan, np.inf
    x = np.array([[nan, 0, 0, -inf], [inf, 0, 0, nan], [nan, -inf, nan, -inf]])
    chosen, top, values = compute(x, np.array([1, 0, 2]))
    np.testing.assert_allclose(chosen, [np.log(0.5), 0, -inf])
    assert top[:2].tolist() == [[1, 2, 0, 3], [0, 1, 2, 3]]
    np.testing.assert_allclose(values[0], [np.log(0.5), np.log(0.5), -inf, -inf])
    assert values[1, 0] == 0
    assert np.all(values[1, 1:] < -1e30)
    assert np.all(values[2] == -inf)
