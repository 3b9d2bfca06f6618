"""Add what several devices have computed parts of, in the order of their ranks.

A library's all-reduce adds in an order that follows from where a number lies in the array, and from the array's size.
A token lies elsewhere in each step, so its bits would depend on other requests. Here devices exchange numbers, which
changes none, and each device adds what it got in one fixed order.
"""

import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

RANKS = "ranks"
"""The axis of a mesh whose devices have a part of the model each."""


def sum_in_rank_order(x: Float[Array, "T D"], dtype: DTypeLike) -> Float[Array, "T D"]:
    """Return the sum of ``x`` over all devices of the axis RANKS, added as it is and rounded to ``dtype`` once.

    Only within a program that runs on these devices. All of them get the same bits.
    """
    ranks = lax.axis_size(RANKS)
    if ranks <= 2 or x.shape[1] % ranks:
        return _tree_sum(list(lax.all_gather(x, RANKS))).astype(dtype)
    # Each device adds its share of the columns: as many bytes cross the links as in a ring.
    parts = lax.all_to_all(x, RANKS, split_axis=1, concat_axis=0, tiled=True).reshape(ranks, len(x), -1)
    return lax.all_gather(_tree_sum(list(parts)).astype(dtype), RANKS, axis=1, tiled=True)


def _tree_sum(parts: list[Array]) -> Array:
    """Return the sum of neighbours, then of neighbouring sums, and so on: as operations, of which none is a reduction
    whose order the compiler chooses."""
    while len(parts) > 1:
        pairs = [jnp.add(*parts[first : first + 2]) for first in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[2 * len(pairs) :]
    return parts[0]
