"""Activations, native and not: right over the whole range of float32, and a row with the same bits in any company."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.activations import ACTIVATIONS, GATED, activate_ref, gated_ref
from tests.support.native import native

SMOOTH = ("silu", "gelu", "gelu_tanh")
DTYPES = ("float32", "bfloat16")
EPS = 2.0**-23
TINY = 2e-36
"""What is lost where exponentials are zeros."""


def sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1.0) / (1.0 + small)


EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.where(x > 0, x, 0.0),
    "relu2": lambda x: np.where(x > 0, x * x, 0.0),
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: x * 0.5 * np.array([math.erfc(-y / math.sqrt(2)) for y in x.ravel()]).reshape(x.shape),
    "gelu_tanh": lambda x: x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
}


def exact_gated(name: str, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    if name != "swiglu_clipped":
        return EXACT[name](gate) * up
    gate = np.minimum(gate, 7.0)
    return gate * sigmoid(1.702 * gate) * (np.clip(up, -7.0, 7.0) + 1.0)


def inputs() -> np.ndarray:
    """Of every size that float32 has, and close together where the functions bend."""
    sizes = np.geomspace(1e-37, 3e38, 4001)
    return np.concatenate([sizes, -sizes, np.linspace(-110.0, 30.0, 14001), [0.0]]).astype(np.float32)


@partial(jax.jit, static_argnums=(0, 2, 3))
def activate(kernel: Any, x: Any, name: str, dtype: str, num_tokens: Any = 10**6) -> Any:
    return kernel(x, jnp.int32(num_tokens), activation=name, dtype=dtype)


def kernels(which: str) -> tuple[Any, Any]:
    return (activate_ref, gated_ref) if which == "ref" else (native().activate, native().gated)


LIMIT = {"native": 4, "ref": 200}
"""Largest errors in units of float32's precision; those of the twins grow with the size of what is exponentiated."""


@pytest.mark.parametrize("which", ["native", "ref"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_matches_float64(name: str, which: str) -> None:
    x = inputs()
    with np.errstate(over="ignore"):
        want = EXACT[name](x.astype(np.float64)).astype(np.float32).astype(np.float64)
    got = np.asarray(activate(kernels(which)[0], x[None], name, "float32"))[0]
    assert_close(got, want, LIMIT[which], np.asarray(TINY, np.float64))


@pytest.mark.parametrize("which", ["native", "ref"])
@pytest.mark.parametrize("name", GATED)
def test_gated_matches_float64(name: str, which: str) -> None:
    gate = inputs()
    up = np.resize(np.array([0.5, -1.0, -0.99999, -7.0, 7.0, -30.0, 1e3, 3e-9, 0.0], np.float32), gate.shape)
    with np.errstate(over="ignore"):
        want = exact_gated(name, gate.astype(np.float64), up.astype(np.float64)).astype(np.float32).astype(np.float64)
    got = np.asarray(activate(kernels(which)[1], np.concatenate([gate, up])[None], name, "float32"))[0]
    assert_close(got, want, LIMIT[which], TINY * np.maximum(1, np.abs(up.astype(np.float64))))


def assert_close(got: np.ndarray, want: np.ndarray, units: float, lost: np.ndarray) -> None:
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    with np.errstate(invalid="ignore"):
        excess = np.abs(got - want) - units * EPS * np.abs(want) - lost
    assert (excess[finite] <= 0).all(), inputs()[finite][excess[finite] > 0][:10]


@pytest.mark.parametrize("which", ["native", "ref"])
def test_what_is_not_finite(which: str) -> None:
    """NaN stays NaN, infinity stays infinity; minus infinity times no share of it is NaN, and zero with relu."""
    plain, gated = kernels(which)
    x = np.array([[np.nan, np.inf, -np.inf]], np.float32)
    for name in ACTIVATIONS:
        got = np.asarray(activate(plain, x, name, "float32"))[0]
        below = 0.0 if name.startswith("relu") else np.nan
        np.testing.assert_array_equal(got, [np.nan, np.inf, below])
    for name in SMOOTH:
        got = np.asarray(activate(gated, np.concatenate([x, np.full_like(x, -2.0)], 1), name, "float32"))[0]
        np.testing.assert_array_equal(got, [np.nan, -np.inf, np.nan])
        got = np.asarray(activate(gated, np.array([[1.0, np.nan]], np.float32), name, "float32"))
        assert np.isnan(got).all()
    pairs = np.array([[np.nan, 1.0], [1.0, np.nan], [np.inf, 1.0], [7.0, np.inf], [7.0, -np.inf]], np.float32)
    got = np.asarray(activate(gated, pairs, "swiglu_clipped", "float32"))[:, 0]
    seven = 7 * sigmoid(np.array(7 * 1.702))
    want = np.array([np.nan, np.nan, 2 * seven, 8 * seven, -6 * seven])
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_relu_has_the_twins_bits() -> None:
    """And those of rounding first: what is rounded once has the bits of relu on rounded numbers."""
    x = np.random.default_rng(0).normal(size=(70, 33)).astype(np.float32)
    for dtype in DTYPES:
        got, want = (np.asarray(activate(kernel, x, "relu", dtype)) for kernel in (native().activate, activate_ref))
        assert got.tobytes() == want.tobytes() == np.asarray(jax.nn.relu(jnp.asarray(x, dtype))).tobytes()


@pytest.mark.parametrize("name", SMOOTH)
def test_an_open_gate_is_a_plain_activation(name: str) -> None:
    x = np.random.default_rng(0).normal(size=(5, 100)).astype(np.float32) * 4
    gated = activate(native().gated, np.concatenate([x, np.ones_like(x)], 1), name, "float32")
    np.testing.assert_array_equal(gated, activate(native().activate, x, name, "float32"))


@pytest.mark.parametrize("which", ["native", "ref"])
def test_a_result_is_rounded_once(which: str) -> None:
    x = np.random.default_rng(0).normal(size=(3, 66)).astype(np.float32) * 3
    for kernel, names in zip(kernels(which), (ACTIVATIONS, GATED), strict=True):
        for name in names:
            wide, narrow = (activate(kernel, x, name, dtype) for dtype in DTYPES)
            np.testing.assert_array_equal(np.asarray(narrow), np.asarray(wide).astype(jnp.bfloat16))


@pytest.mark.shipped
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*ACTIVATIONS, *(f"gated {name}" for name in GATED)])
def test_a_row_keeps_its_bits(name: str, dtype: str) -> None:
    """Alone, among others, at any place, with any padding, which is not read."""
    kernel = native().gated if "gated" in name else native().activate
    run = partial(activate, kernel, name=name.removeprefix("gated "), dtype=dtype)
    x = np.random.default_rng(0).normal(size=(200, 66)).astype(np.float32) * 3
    together = np.asarray(run(x, num_tokens=200)).view(np.uint8)
    for count in (1, 64, 199):
        padded = np.where(np.arange(200)[:, None] < count, x, np.float32(np.nan))
        got = np.asarray(run(padded, num_tokens=count)).view(np.uint8)
        np.testing.assert_array_equal(got[:count], together[:count])
    np.testing.assert_array_equal(np.asarray(run(x[-15:], num_tokens=15)).view(np.uint8), together[-15:])


def test_many_threads_share_the_rows() -> None:
    x = np.random.default_rng(0).normal(size=(64, 4000)).astype(np.float32)
    got = activate(native().gated, x, "silu", "float32")
    want = exact_gated("silu", *np.split(x.astype(np.float64), 2, axis=1))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=0)


def test_other_names_and_dtypes_are_refused() -> None:
    x = jnp.zeros((2, 4))
    for plain, gated in (kernels("native"), kernels("ref")):
        with pytest.raises(ValueError, match="activation is 'swish', none of relu, relu2, silu, gelu, gelu_tanh"):
            plain(x, jnp.int32(2), activation="swish", dtype="float32")
        with pytest.raises(ValueError, match="activation is 'relu', none of silu, gelu, gelu_tanh, swiglu_clipped"):
            gated(x, jnp.int32(2), activation="relu", dtype="float32")
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        native().gated(x, jnp.int32(2), activation="silu", dtype="float16")
    assert gated_ref(x, jnp.int32(2), activation="silu", dtype="float16").dtype == "float16"
