"""Sums whose order the program fixes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgen.arrays import ordered_sum


def in_numpy(row: np.ndarray) -> np.float32:
    """The definition: 64 parts of neighbours, added by pairs of halves, until there is one number."""
    while len(row) > 1:
        parts = np.pad(row, (0, -len(row) % 64)).reshape(64, -1)
        while len(parts) > 1:
            parts = parts[: len(parts) // 2] + parts[len(parts) // 2 :]
        row = parts[0]
    return np.float32(row[0])


@pytest.mark.parametrize("width", [1, 64, 300, 5000])
def test_the_order_is_that_of_the_definition(width: int) -> None:
    x = np.random.default_rng(0).normal(size=(3, width)).astype(np.float32)
    found = np.asarray(jax.jit(ordered_sum)(jnp.asarray(x)))
    np.testing.assert_array_equal(found[:, 0], [in_numpy(row) for row in x])
    np.testing.assert_allclose(found[:, 0], x.astype(np.float64).sum(axis=1), rtol=1e-5, atol=1e-4)
