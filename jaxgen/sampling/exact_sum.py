"""Unsigned integers of up to 64 bits as four 16-bit limbs, least significant first, each in a uint32.

They let a program that knows 32 bits only add many 32-bit numbers exactly. An exact sum has the same bits whatever the
order of its terms, so what is decided by it depends on no compiler, device or shape.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, UInt32

type Limbs = tuple[Array, Array, Array, Array]

BITS = 16
MASK = (1 << BITS) - 1


def from_words(high: UInt32[Array, "*n"], low: UInt32[Array, "*n"]) -> Limbs:
    """high * 2**32 + low."""
    return low & MASK, low >> BITS, high & MASK, high >> BITS


def fused_sums(*terms: UInt32[Array, "*n"], axes: Sequence[int]) -> tuple[Array, ...]:
    """The uint32 sum of each of ``terms`` over ``axes``, modulo 2**32.

    One reduction of all of them reads what they have in common once; XLA does not join separate sums on a CPU.
    """
    zeros = (jnp.zeros((), jnp.uint32),) * len(terms)
    sums: tuple[Array, ...] = jax.lax.reduce(
        terms, zeros, lambda left, right: tuple(a + b for a, b in zip(left, right, strict=True)), axes
    )
    return sums


def word_sums(*words: UInt32[Array, "*n m"]) -> list[Limbs]:
    """The exact sum of each of ``words`` over its last axis, which must be shorter than 2**16."""
    halves = [half for word in words for half in (word & MASK, word >> BITS)]
    columns = fused_sums(*halves, axes=[words[0].ndim - 1])
    return [_carry(columns[i : i + 2]) for i in range(0, len(columns), 2)]


def running_word_sum(words: UInt32[Array, "*n m"]) -> Limbs:
    """Sums of the first 1, 2, ..., m words of the last axis, which must be shorter than 2**16."""
    return _carry([jnp.cumsum(half, axis=-1) for half in (words & MASK, words >> BITS)])


def total(terms: Limbs) -> Limbs:
    """Sum over the last axis, which must be shorter than 2**16."""
    return _carry([jnp.sum(limb, axis=-1, dtype=jnp.uint32) for limb in terms])


def running_total(terms: Limbs) -> Limbs:
    """Sums of the first 1, 2, ..., m numbers of the last axis, which must be shorter than 2**16."""
    return _carry([jnp.cumsum(limb, axis=-1) for limb in terms])


def add(left: Limbs, right: Limbs) -> Limbs:
    """left + right, modulo 2**64; shapes broadcast."""
    return _carry([a + b for a, b in zip(left, right, strict=True)])


def at_least(left: Limbs, right: Limbs) -> Bool[Array, "*n"]:
    """left >= right; shapes broadcast."""
    result = left[0] >= right[0]
    for a, b in zip(left[1:], right[1:], strict=True):
        result = (a > b) | ((a == b) & result)
    return result


def is_zero(number: Limbs) -> Bool[Array, "*n"]:
    a, b, c, d = number
    return (a | b | c | d) == 0


def multiply(left: Limbs, right: Limbs, drop: int) -> Limbs:
    """left * right // 2**(16 * drop), modulo 2**64; both of one shape."""
    columns = [jnp.zeros_like(left[0])] * 8
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            product = a * b
            columns[i + j] += product & MASK
            columns[i + j + 1] += product >> BITS
    return _carry(columns, drop)


def _carry(columns: Sequence[Array], drop: int = 0) -> Limbs:
    """Four limbs, after the first ``drop``, of the number whose limbs are ``columns``, each at most 2**32 - 2**16."""
    limbs, over = [], jnp.zeros((), jnp.uint32)
    for i in range(drop + 4):
        column = columns[i] + over if i < len(columns) else over
        limbs.append(column & MASK)
        over = column >> BITS
    a, b, c, d = limbs[drop:]
    return a, b, c, d
