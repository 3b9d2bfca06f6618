"""The mean of a row: right, and the same bits among any number of rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgen.models.layers import row_mean


@pytest.mark.parametrize("width", [1, 7, 96, 192, 333, 1024])
def test_other_rows_change_nothing(width: int) -> None:
    x = np.random.default_rng(0).standard_normal((256, width)).astype(np.float32)
    squares = jax.jit(lambda x: row_mean(x * x))
    found = np.asarray(squares(x))
    np.testing.assert_allclose(found, np.mean(x.astype(np.float64) ** 2, axis=-1, keepdims=True), rtol=1e-6)
    for rows in (1, 8, 16, 64, 100):
        assert np.asarray(squares(x[:rows])).tobytes() == found[:rows].tobytes()


def test_any_leading_axes() -> None:
    x = jnp.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(row_mean(x), x.mean(-1, keepdims=True))
