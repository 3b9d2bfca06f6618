"""Limb arithmetic against Python's integers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgen.sampling import exact_sum

WORD = 2**32 - 1
# Compiled: operation by operation, each example would take a hundred times as long.
from_words = jax.jit(exact_sum.from_words)
word_sums, running_word_sum = jax.jit(exact_sum.word_sums), jax.jit(exact_sum.running_word_sum)
total, running_total = jax.jit(exact_sum.total), jax.jit(exact_sum.running_total)
add, at_least, is_zero = jax.jit(exact_sum.add), jax.jit(exact_sum.at_least), jax.jit(exact_sum.is_zero)
multiply = jax.jit(exact_sum.multiply, static_argnums=2)
pytestmark = pytest.mark.shipped
edge_words = st.sampled_from([0, 1, 2**16 - 1, 2**16, 2**31, WORD])
words = edge_words | st.integers(0, WORD)
numbers = st.builds(lambda high, low: high << 32 | low, words, words)


def u32(values: list[int]) -> np.ndarray:
    return np.array(values, np.uint32)


def from_ints(values: list[int]) -> exact_sum.Limbs:
    return from_words(u32([v >> 32 for v in values]), u32([v & WORD for v in values]))


def to_ints(number: exact_sum.Limbs) -> list[int]:
    assert all(np.all(np.asarray(limb) < 2**16) for limb in number)
    return [sum(int(limb) << 16 * i for i, limb in enumerate(row)) for row in np.stack(number, axis=-1).reshape(-1, 4)]


@settings(deadline=None, max_examples=50)
@given(st.lists(words, min_size=7, max_size=7))
def test_sums_of_words(values: list[int]) -> None:
    row = u32(values)
    (once,) = word_sums(row[None])
    assert to_ints(once) == [sum(values)]
    assert [to_ints(s) for s in word_sums(row, np.zeros_like(row), row)] == [[sum(values)], [0], [sum(values)]]
    assert to_ints(running_word_sum(row)) == [sum(values[: i + 1]) for i in range(7)]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 2**60), min_size=5, max_size=5))
def test_sums_of_numbers(values: list[int]) -> None:
    row = from_ints(values)
    assert to_ints(total(row)) == [sum(values)]
    assert to_ints(running_total(row)) == [sum(values[: i + 1]) for i in range(5)]


def test_the_longest_sum_does_not_wrap() -> None:
    longest = 2**16 - 1
    (once,) = word_sums(jnp.full((1, longest), WORD, jnp.uint32))
    assert to_ints(once) == [longest * WORD]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(numbers, numbers), min_size=10, max_size=10))
def test_arithmetic_and_order(pairs: list[tuple[int, int]]) -> None:
    a, b = [p[0] for p in pairs], [p[1] for p in pairs]
    left, right = from_ints(a), from_ints(b)
    assert to_ints(add(left, right)) == [(x + y) % 2**64 for x, y in pairs]
    assert at_least(left, right).tolist() == [x >= y for x, y in pairs]
    assert at_least(left, left).all()
    assert is_zero(left).tolist() == [x == 0 for x in a]
    for drop in range(5):
        assert to_ints(multiply(left, right, drop)) == [(x * y >> 16 * drop) % 2**64 for x, y in pairs]


@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 3, 4)])
def test_fused_sums_are_the_separate_ones(shape: tuple[int, ...]) -> None:
    a = jnp.asarray(np.random.default_rng(1).integers(0, WORD, shape, np.uint32))
    one, other = exact_sum.fused_sums(a, a >> 3, axes=[len(shape) - 1])
    assert np.array_equal(one, np.asarray(a).sum(-1, dtype=np.uint32))
    assert np.array_equal(other, (np.asarray(a) >> 3).sum(-1, dtype=np.uint32))
