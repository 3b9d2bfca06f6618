"""Sums over devices: added in the order of ranks, wherever a number lies in the array."""

import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float

from jaxgen.models.rank_sum import RANKS, sum_in_rank_order

WIDTH = 24
ROWS = 6
PARTS = np.random.default_rng(0).normal(scale=1e3, size=(8, ROWS, WIDTH)).astype(np.float32)
Sum = Callable[[Float[Array, "T D"]], Float[Array, "T D"]]


def program(ranks: int, add: Sum) -> jax.stages.Wrapped:
    """The sum of an array of parts, as each of the first devices gets it."""
    mesh, parts = Mesh(np.asarray(jax.devices()[:ranks]), (RANKS,)), PartitionSpec(RANKS)
    return jax.jit(jax.shard_map(lambda x: add(x[0])[None], mesh=mesh, in_specs=parts, out_specs=parts))


def in_float32(x: Float[Array, "T D"]) -> Float[Array, "T D"]:
    return sum_in_rank_order(x, jnp.float32)


def in_ring_order(x: Float[Array, "T D"]) -> Float[Array, "T D"]:
    """A sum as of a ring, which begins at a rank that follows from the row."""
    parts, rows = lax.all_gather(x, RANKS), jnp.arange(len(x))
    ranks = len(parts)
    total = parts[rows % ranks, rows]
    for step in range(1, ranks):
        total = total + parts[(rows + step) % ranks, rows]
    return total


def summed(parts: np.ndarray) -> np.ndarray:
    """The sum of neighbours, then of their sums."""
    rest = list(parts)
    while len(rest) > 1:
        rest = [sum(rest[first + 1 : first + 2], rest[first]) for first in range(0, len(rest), 2)]
    return rest[0]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_each_device_gets_the_sum_in_the_order_of_ranks(ranks: int) -> None:
    found = np.asarray(program(ranks, in_float32)(PARTS[:ranks]))
    for of_device in found:
        np.testing.assert_array_equal(of_device, summed(PARTS[:ranks]))


def test_a_width_that_devices_do_not_divide_is_added_in_the_same_order() -> None:
    narrow = PARTS[:4, :, :5]
    np.testing.assert_array_equal(np.asarray(program(4, in_float32)(narrow))[3], summed(narrow))


def test_the_sum_is_rounded_once() -> None:
    found = program(4, lambda x: sum_in_rank_order(x, jnp.bfloat16))(PARTS[:4])
    np.testing.assert_array_equal(np.asarray(found)[0], summed(PARTS[:4]).astype(jnp.bfloat16))


@pytest.mark.parametrize(("add", "agrees"), [(in_float32, True), (in_ring_order, False)])
def test_the_bits_of_a_row_do_not_depend_on_its_place(add: Sum, agrees: bool) -> None:
    """The sum of a ring shows that another order is found."""
    order, run = np.roll(np.arange(ROWS), 1), program(8, add)
    found = np.asarray(run(PARTS))[:, order] == np.asarray(run(PARTS[:, order]))
    assert bool(found.all()) == agrees


@pytest.mark.parametrize("ranks", [2, 4])
def test_no_library_adds(ranks: int) -> None:
    text = program(ranks, in_float32).lower(PARTS[:ranks]).compile().as_text()
    assert text is not None
    assert "all-gather" in text
    assert not re.search("all-reduce|reduce-scatter", text)
