"""Norms, native and not: right, and a row with the same bits among any number of rows."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.norms import layer_norm_ref, rms_norm_ref, row_mean
from tests.support.native import native

DTYPES = ("float32", "bfloat16")
WIDTHS = [1, pytest.param(7, marks=pytest.mark.full), 33, 768]
"""Less than a vector, one and a part, whole ones."""
EPS = 1e-5
RELATIVE = {"float32": 2e-6, "bfloat16": 2.0**-7}
"""An operation's rounding to the dtype, or two."""
Kernel = Callable[..., jax.Array]


@partial(jax.jit, static_argnums=(0, 2))
def of_rms(kernel: Kernel, x: jax.Array, width: int, num_tokens: jax.Array) -> jax.Array:
    weight = jnp.linspace(-1.0, 2.0, width, dtype=x.dtype)
    return kernel(x[:, :width], weight, num_tokens, eps=EPS)


@partial(jax.jit, static_argnums=(0, 2))
def of_layer(kernel: Kernel, x: jax.Array, width: int, num_tokens: jax.Array) -> jax.Array:
    weight, bias = jnp.linspace(-1.0, 2.0, width, dtype=x.dtype), jnp.linspace(1.0, -3.0, width, dtype=x.dtype)
    return kernel(x[:, :width], weight, bias, num_tokens, eps=EPS)


@partial(jax.jit, static_argnums=(0, 2))
def of_late(kernel: Kernel, x: jax.Array, width: int, num_tokens: jax.Array) -> jax.Array:
    return kernel(x[:, :width], jnp.linspace(-1.0, 2.0, width, dtype=jnp.float32), num_tokens, eps=EPS)


@partial(jax.jit, static_argnums=(0, 2))
def of_scaled(kernel: Kernel, x: jax.Array, width: int, num_tokens: jax.Array) -> jax.Array:
    weight = jnp.linspace(-1.0, 2.0, width, dtype=x.dtype)
    return kernel(x[:, :width], weight, None, num_tokens, eps=EPS)


@partial(jax.jit, static_argnums=(0, 2))
def of_late_layer(kernel: Kernel, x: jax.Array, width: int, num_tokens: jax.Array) -> jax.Array:
    weight, bias = jnp.linspace(-1.0, 2.0, width, dtype=jnp.float32), jnp.linspace(1.0, -3.0, width, dtype=x.dtype)
    return kernel(x[:, :width], weight, bias, num_tokens, eps=EPS)


def want_rms(x: np.ndarray, width: int) -> np.ndarray:
    x = x[:, :width]
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * np.linspace(-1.0, 2.0, width)


def want_layer(x: np.ndarray, width: int) -> np.ndarray:
    x = x[:, :width] - x[:, :width].mean(-1, keepdims=True)
    normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
    return normed * np.linspace(-1.0, 2.0, width) + np.linspace(1.0, -3.0, width)


def want_scaled(x: np.ndarray, width: int) -> np.ndarray:
    return want_layer(x, width) - np.linspace(1.0, -3.0, width)


KINDS: list[Any] = [
    pytest.param(of_rms, want_rms, "rms_norm", rms_norm_ref, id="rms"),
    pytest.param(of_layer, want_layer, "layer_norm", layer_norm_ref, id="layer"),
    pytest.param(of_late, want_rms, "rms_norm", rms_norm_ref, id="rms, late"),
    pytest.param(of_scaled, want_scaled, "layer_norm", layer_norm_ref, id="layer without bias"),
    pytest.param(of_late_layer, want_layer, "layer_norm", layer_norm_ref, id="layer, late"),
]


def draw(rows: int, width: int, dtype: str) -> np.ndarray:
    return (np.random.default_rng(0).normal(size=(rows, 2 * width)) * 3.0 + 0.5).astype(jnp.dtype(dtype))


@pytest.mark.parametrize(("run", "want", "name", "ref"), KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_matches_float64(width: int, dtype: str, run: Any, want: Any, name: str, ref: Kernel) -> None:
    x = draw(70, width, dtype)
    expected = want(np.asarray(x).astype(np.float64), width)
    for kernel in (ref, getattr(native(), name)):
        got = run(kernel, x, width, 70)
        assert got.dtype == dtype
        # Weights are rounded to the dtype too, and what cancels keeps the size of what it came from.
        np.testing.assert_allclose(
            np.asarray(got).astype(np.float64), expected, rtol=RELATIVE[dtype], atol=6 * RELATIVE[dtype]
        )


@pytest.mark.shipped
@pytest.mark.parametrize(("run", "want", "name", "ref"), KINDS)
@pytest.mark.parametrize(
    ("width", "dtype"),
    [
        (33, "float32"),
        (768, "bfloat16"),
        pytest.param(33, "bfloat16", marks=pytest.mark.full),  # each width and each type is above
        pytest.param(768, "float32", marks=pytest.mark.full),
    ],
)
def test_a_row_keeps_its_bits(width: int, dtype: str, run: Any, want: Any, name: str, ref: Kernel) -> None:
    """Alone, among others, at any place, with any padding, which is not read."""
    kernel, x = getattr(native(), name), draw(256, width, dtype)
    together = np.asarray(run(kernel, x, width, 256)).view(np.uint8)
    for count in (1, 2, 15, 64, 255):
        padded = np.where(np.arange(256)[:, None] < count, x, np.asarray(np.nan, x.dtype))
        got = np.asarray(run(kernel, padded, width, count)).view(np.uint8)
        np.testing.assert_array_equal(got[:count], together[:count])
        alone = run(kernel, x[-count:], width, count)
        np.testing.assert_array_equal(np.asarray(alone).view(np.uint8), together[-count:])


def test_nan_is_not_hidden() -> None:
    x = jnp.array([[1.0, jnp.nan, 2.0, 3.0]])
    for kernel, run in ((native().rms_norm, of_rms), (native().rms_norm, of_late), (native().layer_norm, of_layer)):
        assert np.isnan(np.asarray(run(kernel, x, 2, 1))).any()


@pytest.mark.parametrize("name", ["native", "ref"])
def test_a_float32_weight_multiplies_before_anything_is_rounded(name: str) -> None:
    kernel, width = native().rms_norm if name == "native" else rms_norm_ref, 768
    x = draw(70, width, "bfloat16")
    exact = want_rms(np.asarray(x).astype(np.float64), width)
    exact = exact.astype(np.float32).astype(jnp.bfloat16)
    late, early = (np.asarray(run(kernel, x, width, 70)) for run in (of_late, of_rms))
    assert (late == exact).mean() > 0.99
    assert (early == exact).mean() < 0.8


@pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16"])
def test_heads_are_rows(weight_dtype: str) -> None:
    tokens, heads, width = 5, 3, 16
    x = jnp.asarray(draw(8 * heads, width, "bfloat16"))[:, :width]
    weight = jnp.linspace(-1.0, 2.0, width, dtype=weight_dtype)
    got = native().rms_norm(x, weight, jnp.int32(tokens * heads), eps=EPS)
    want = rms_norm_ref(x, weight, jnp.int32(tokens * heads), eps=EPS)
    found, wanted = (np.asarray(out[: tokens * heads]).astype(np.float32) for out in (got, want))
    np.testing.assert_allclose(found, wanted, rtol=2**-7, atol=0)


def test_a_norm_may_have_no_weights() -> None:
    x = jnp.asarray(draw(5, 20, "float32"))
    got = native().layer_norm(x, None, None, jnp.int32(5), eps=EPS)
    np.testing.assert_allclose(got, layer_norm_ref(x, None, None, jnp.int32(5), eps=EPS), rtol=0, atol=1e-5)


@pytest.mark.parametrize("x_dtype", DTYPES)
def test_other_dtypes_are_refused(x_dtype: str) -> None:
    x, weight = jnp.zeros((2, 4), x_dtype), jnp.zeros(4, "float16")
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        native().rms_norm(x, weight, jnp.int32(2), eps=EPS)
    with pytest.raises(ValueError, match=f"a norm's weight is float16, neither {x_dtype} nor float32"):
        rms_norm_ref(x, weight, jnp.int32(2), eps=EPS)


@pytest.mark.parametrize("width", [1, 333, 1024, *(pytest.param(n, marks=pytest.mark.full) for n in (7, 96, 192))])
def test_other_rows_change_no_mean(width: int) -> None:
    x = np.random.default_rng(0).standard_normal((256, width)).astype(np.float32)
    squares = jax.jit(lambda x: row_mean(x * x))
    found = np.asarray(squares(x))
    np.testing.assert_allclose(found, np.mean(x.astype(np.float64) ** 2, axis=-1, keepdims=True), rtol=1e-6)
    for rows in (1, 8, 16, 64, 100):
        assert np.asarray(squares(x[:rows])).tobytes() == found[:rows].tobytes()


def test_any_leading_axes() -> None:
    x = jnp.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(row_mean(x), x.mean(-1, keepdims=True))
