"""Inputs of dense products whose bits are known, and the interpreted kernels."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.gpu.dense_support import TILE_K
from tests.support.interpreted import INTERPRET, watched

NUM_CTAS = 3
Multiply = Callable[..., np.ndarray]


def exact_rows(rows: int, width: int, most: int = 128) -> np.ndarray:
    """Return small integers, times a power of two for each step of inputs. So the sum of a step is exact, in whatever
    order, and that of all steps is rounded after each."""
    steps = 2.0 ** -(np.arange(width) // TILE_K * 14 % 26)
    numbers: np.ndarray = np.random.default_rng(3).integers(-most, most + 1, size=(rows, width)) * steps
    return numbers


def in_steps(x: Any, weight: Any, parts: int) -> np.ndarray:
    """Return the only right bits: of each part the sums of its steps, added one by one in float32."""
    sums = np.zeros((parts, len(x), weight.shape[1]), np.float32)
    factors = (np.asarray(one).astype(np.float64) for one in (x, weight[1]))
    pieces = [np.split(one, one.shape[1] // TILE_K, axis=1) for one in factors]
    of_part = len(pieces[0]) // parts
    for k, (rows, columns) in enumerate(zip(*pieces, strict=True)):
        step = rows @ columns.T
        np.testing.assert_array_equal(step, step.astype(np.float32))
        sums[k // of_part] += step.astype(np.float32)
    return sums


def multiplying(kernel: Callable[..., jax.Array], **options: Any) -> Multiply:
    """Return (x, weight, number of rows) -> the product of so many rows, the others being NaN: one compiled program."""
    program = jax.jit(partial(kernel, interpret=INTERPRET, num_ctas=NUM_CTAS, **options))

    def multiply(x: jax.Array, weight: Any, count: int, *residual: jax.Array) -> np.ndarray:
        padded = np.array(x)
        padded[count:] = np.nan
        with watched():
            y = program(padded, weight, jnp.int32(1), jnp.int32(count), *residual)
            return np.asarray(jax.block_until_ready(y))[..., :count, :]

    return multiply
