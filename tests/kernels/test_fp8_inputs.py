"""Inputs that are rounded to FP8 are those of the definition, computed by numpy, and no row depends on another."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from pallas_kernels.fp8_inputs import E4M3_MOST, fp8_inputs

COMPILED = jax.jit(fp8_inputs)
ROWS, INPUTS = 12, 160


def inputs() -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.normal(size=(ROWS, INPUTS)) * np.exp(rng.normal(0, 4, size=(ROWS, 1)))).astype(np.float32)


def test_numbers_are_rounded_by_token_to_the_nearest() -> None:
    for dtype in (jnp.float32, jnp.bfloat16):
        x = jnp.asarray(inputs(), dtype)
        numbers = np.asarray(x, np.float32)
        largest = np.abs(numbers).max(axis=1, keepdims=True)
        wanted = (numbers * (np.float32(E4M3_MOST) / largest)).astype(ml_dtypes.float8_e4m3fn)
        codes, scales = COMPILED(x)
        assert codes.dtype == jnp.float8_e4m3fn
        np.testing.assert_array_equal(np.asarray(codes).view(np.uint8), wanted.view(np.uint8))
        np.testing.assert_array_equal(scales, largest * np.float32(1 / E4M3_MOST))
        assert np.abs(wanted.astype(np.float32)).max(axis=1).tolist() == [E4M3_MOST] * ROWS, "the range is used"


def test_rows_of_zeros_stay_and_rows_that_are_not_finite_are_nan() -> None:
    x = inputs()
    x[0], x[1, 3], x[2, 3] = 0, np.nan, -np.inf
    codes, scales = COMPILED(x)
    found = np.asarray(codes.astype(jnp.float32) * scales)
    assert not found[0].any()
    assert np.isnan(found[1:3]).all()
    assert np.isfinite(found[3:]).all()


def test_no_row_depends_on_another() -> None:
    x, changed = inputs(), -2 * inputs()[::-1].copy()
    changed[1] = np.inf
    changed[5] = x[5]
    for found, other in zip(COMPILED(x), COMPILED(changed), strict=True):
        np.testing.assert_array_equal(np.asarray(found[5]), np.asarray(other[5]))
