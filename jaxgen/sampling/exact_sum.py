"""Unsigned integers of up to 64 bits as four 16-bit limbs, least significant first, each in a uint32.

With them a program of 32-bit arithmetic adds many 32-bit numbers exactly. An exact sum has the same bits in any order
of its terms, so decisions based on it do not depend on compiler, device or shape.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, UInt32

type Limbs = tuple[Array, Array, Array, Array]

BITS = 16
MASK = (1 << BITS) - 1


def from_words(high: UInt32[Array, "*n"], low: UInt32[Array, "*n"]) -> Limbs:
    """Return high * 2**32 + low."""
    return low & MASK, low >> BITS, high & MASK, high >> BITS


def fused_sums(*terms: UInt32[Array, "*n"], axes: Sequence[int]) -> tuple[Array, ...]:
    """Return the uint32 sum of each of ``terms`` over ``axes``, modulo 2**32.

    One reduction for all of them reads their common inputs once; XLA does not fuse separate sums on a CPU.
    """
    zeros = (jnp.zeros((), jnp.uint32),) * len(terms)
    sums: tuple[Array, ...] = jax.lax.reduce(
        terms, zeros, lambda left, right: tuple(a + b for a, b in zip(left, right, strict=True)), axes
    )
    return sums


def word_sums(*words: UInt32[Array, "*n m"]) -> list[Limbs]:
    """Return the exact sum of each of ``words`` over its last axis, which must be shorter than 2**16."""
    halves = [half for word in words for half in (word & MASK, word >> BITS)]
    columns = fused_sums(*halves, axes=[words[0].ndim - 1])
    return [_carry(columns[i : i + 2]) for i in range(0, len(columns), 2)]


def running_word_sum(words: UInt32[Array, "*n m"]) -> Limbs:
    """Return the sums of the first 1, 2, ..., m words of the last axis, which must be shorter than 2**16."""
    return _carry([jnp.cumsum(half, axis=-1) for half in (words & MASK, words >> BITS)])


def total(terms: Limbs) -> Limbs:
    """Return the sum over the last axis, which must be shorter than 2**16."""
    return _carry([jnp.sum(limb, axis=-1, dtype=jnp.uint32) for limb in terms])


def running_total(terms: Limbs) -> Limbs:
    """Return the sums of the first 1, 2, ..., m numbers of the last axis, which must be shorter than 2**16."""
    return _carry([jnp.cumsum(limb, axis=-1) for limb in terms])


def add(left: Limbs, right: Limbs) -> Limbs:
    """Return left + right, modulo 2**64; shapes broadcast."""
    return _carry([a + b for a, b in zip(left, right, strict=True)])


def at_least(left: Limbs, right: Limbs) -> Bool[Array, "*n"]:
    """Whether left >= right; shapes broadcast."""
    result = left[0] >= right[0]
    for a, b in zip(left[1:], right[1:], strict=True):
        result = (a > b) | ((a == b) & result)
    return result


def is_zero(number: Limbs) -> Bool[Array, "*n"]:
    a, b, c, d = number
    return (a | b | c | d) == 0


def multiply(left: Limbs, right: Limbs, drop: int) -> Limbs:
    """Return left * right // 2**(16 * drop), modulo 2**64; both must have the same shape."""
    columns = [jnp.zeros_like(left[0])] * 8
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            product = a * b
            columns[i + j] += product & MASK
            columns[i + j + 1] += product >> BITS
    return _carry(columns, drop)


def _carry(columns: Sequence[Array], drop: int = 0) -> Limbs:
    """Return four limbs, after the first ``drop``, of the number with limbs ``columns``, each at most 2**32 - 2**16."""
    limbs, over = [], jnp.zeros((), jnp.uint32)
    for i in range(drop + 4):
        column = columns[i] + over if i < len(columns) else over
        limbs.append(column & MASK)
        over = column >> BITS
    a, b, c, d = limbs[drop:]
    return a, b, c, d
