"""Heads out of a projection's rows, and their rotary embedding: the native kernel and its twin."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.rotary import rotated_heads_ref
from tests.support.native import native

T, HEADS = 70, 7
DTYPES = ["float32", "bfloat16"]
WIDTHS = [(16, 8), (16, 3), (33, 16), (128, 64), (40, None)]
"""Numbers of a head, and pairs of them that are turned; None: there are no angles."""


def draw(width: int, half: int | None, dtype: str) -> tuple[np.ndarray, Any]:
    """Rows of seven heads and each token's angles."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(T, HEADS * width)).astype(jnp.dtype(dtype))
    return x, None if half is None else rng.uniform(-7, 7, size=(T, 1, half))


def turns(angles: np.ndarray | None) -> Any:
    return None if angles is None else tuple(jnp.asarray(turn(angles), "float32") for turn in (np.cos, np.sin))


def run(name: str, x: np.ndarray, angles: np.ndarray | None, num_tokens: int = T, **heads: int) -> np.ndarray:
    """The rows that hold something."""
    kernel = native().rotated_heads if name == "native" else rotated_heads_ref
    return np.asarray(kernel(jnp.asarray(x), turns(angles), jnp.int32(num_tokens), **heads))[:num_tokens]


def expected(x: np.ndarray, angles: np.ndarray | None, *, first: int, heads: int, head_dim: int) -> np.ndarray:
    """In float64, each pair as a complex number."""
    taken = np.array(x.reshape(len(x), HEADS, head_dim)[:, first : first + heads], np.float64)
    if angles is not None:
        half = angles.shape[-1]
        pairs = (taken[..., :half] + 1j * taken[..., half : 2 * half]) * np.exp(1j * angles)
        taken[..., : 2 * half] = np.concatenate([pairs.real, pairs.imag], axis=-1)
    return taken


@pytest.mark.parametrize("name", ["native", "ref"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "half"), WIDTHS)
def test_matches_float64(width: int, half: int | None, dtype: str, name: str) -> None:
    x, angles = draw(width, half, dtype)
    for first, heads in ((0, 4), (4, 2), (6, 1)):
        which = {"first": first, "heads": heads, "head_dim": width}
        got, want = run(name, x, angles, **which), expected(x, angles, **which)
        assert got.dtype == x.dtype
        error = {"float32": 2e-6, "bfloat16": 2**-8}[dtype]
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=error, atol=2e-6)
        rest = slice(2 * (half or 0), None)
        np.testing.assert_array_equal(got[..., rest].astype(np.float64), want[..., rest])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_keeps_its_bits(dtype: str) -> None:
    """Alone, among others, at any place, with any padding, which is not read."""
    x, angles = draw(40, 19, dtype)
    which = {"first": 1, "heads": 5, "head_dim": 40}
    together = run("native", x, angles, **which)
    for count in (1, 2, 33, T - 1):
        padded = np.where(np.arange(T)[:, None] < count, x, np.asarray(np.nan, x.dtype))
        np.testing.assert_array_equal(run("native", padded, angles, count, **which), together[:count])
        alone = run("native", x[-count:], angles[-count:], count, **which)
        np.testing.assert_array_equal(alone, together[-count:])


def test_many_threads_share_the_rows() -> None:
    x = np.random.default_rng(0).normal(size=(64, HEADS * 512)).astype(np.float32)
    angles = np.linspace(0, 3, 64 * 256).reshape(64, 1, 256)
    which = {"first": 0, "heads": HEADS, "head_dim": 512}
    np.testing.assert_allclose(run("native", x, angles, 64, **which), expected(x, angles, **which), atol=2e-6)


@pytest.mark.parametrize(
    ("which", "half", "says"),
    [
        ({"first": 4, "heads": 4, "head_dim": 16}, 8, "x has no such heads"),
        ({"first": -1, "heads": 4, "head_dim": 16}, 8, "x has no such heads"),
        ({"first": 0, "heads": 4, "head_dim": 16}, 9, "the angles do not fit the heads"),
    ],
)
def test_what_does_not_fit_is_refused(which: dict[str, int], half: int, says: str) -> None:
    x, angles = draw(16, half, "float32")
    with pytest.raises(jax.errors.JaxRuntimeError, match=says):
        run("native", x, angles, **which)


def test_float16_is_refused() -> None:
    x, angles = draw(16, 8, "float16")
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        run("native", x, angles, first=0, heads=1, head_dim=16)
