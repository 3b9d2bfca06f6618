"""The online softmax that the walk over a context and the combination of its pieces share, bit for bit.

Maxima are kept in the exponents' unit (base 2) and rounded up to integers. So every factor that rescales a sum is a
power of two, and its product is exact. The bits are the same whether or not a compiler fuses the product with the
addition that follows. So two kernels that it compiles differently agree. A weight is then between 0 and 1 and the
largest at least 1/4.

After Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv 1805.02867.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

LOG2_E = math.log2(math.e)
MASKED = -1e30
FLOOR = -1e20
"""Where maxima start: far above ``MASKED``, so that exp2(MASKED - maximum) is exactly 0 and a tile or piece of which a
query sees nothing changes no bit."""

Array = Any
"""Registers of a warpgroup."""


class Part(NamedTuple):
    """The contribution of some keys: queries' maxima and sums of weights [n], weighted sums of values [n, D] (or all
    [n])."""

    maximum: Array
    total: Array
    output: Array


def ceiling(scores: Array) -> Array:
    """An integer in [scores, scores + 1]."""
    return lax.round(scores + 0.5, lax.RoundingMethod.TO_NEAREST_EVEN)


def power_of_two(exponents: Array) -> Array:
    """2 ** exponents, exactly, of integers that are at most 0; 0 below the normal numbers. No exp2, whose approximation
    on a GPU is not specified to be exact there."""
    biased = jnp.maximum(exponents, -127.0).astype(jnp.int32) + 127
    return lax.bitcast_convert_type(biased << 23, jnp.float32)


def along_rows(factor: Array, shape: tuple[int, ...]) -> Array:
    """Broadcast one factor for each row to ``shape``."""
    return factor if factor.shape == shape else lax.broadcast_in_dim(factor, shape, (0,))


def merge(left: Part, right: Part) -> Part:
    """The keys of both. Not associative in floating point: pieces are merged from the left."""
    maximum = jnp.maximum(left.maximum, right.maximum)
    keep, add = power_of_two(left.maximum - maximum), power_of_two(right.maximum - maximum)
    shape = left.output.shape
    return Part(
        maximum,
        left.total * keep + right.total * add,
        left.output * along_rows(keep, shape) + right.output * along_rows(add, shape),
    )


def sink(exponents: Array, output: Array) -> Part:
    """A key for each query that weighs 2 ** exponents and has no value; ``output`` is zeros."""
    maximum = jnp.maximum(ceiling(exponents), FLOOR)  # of a sink of -inf: no number less an infinity is NaN
    return Part(maximum, jnp.exp2(exponents - maximum), output)


def normalized(part: Part) -> Array:
    return part.output * along_rows(1.0 / part.total, part.output.shape)
