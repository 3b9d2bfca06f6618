"""The norms for NVIDIA GPUs, interpreted: near their twins and float64; a row with the same bits among any others."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.add_norm import add_layer_norm_ref, add_rms_norm_ref
from pallas_kernels.gpu.norm_support import TILE, supports
from pallas_kernels.gpu.norms import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from pallas_kernels.norms import layer_norm_ref, rms_norm_ref
from tests.support.interpreted import INTERPRET, run, watched

EPS = 1e-5
LONG, HEAD = 384, 64
"""Numbers of a row that a warpgroup holds alone, and of one in a tile."""
ROWS = {LONG: 9}
"""Rows in an array; of shorter ones a tile, and one that is not full."""
TOLERANCE = {"float32": 2e-6, "bfloat16": 2.0**-7}
KERNELS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "rms_norm": (rms_norm, rms_norm_ref),
    "layer_norm": (layer_norm, layer_norm_ref),
    "add_rms_norm": (add_rms_norm, add_rms_norm_ref),
    "add_layer_norm": (add_layer_norm, add_layer_norm_ref),
}


class Rows:
    """Arguments of one of KERNELS, and its compiled program."""

    def __init__(self, name: str, width: int, *, dtype: str = "bfloat16", weight: str | None = None, parts: int = 2):
        rng, self.name, self.dtype, self.count = np.random.default_rng(0), name, dtype, ROWS.get(width, TILE + 6)
        self.x = jnp.asarray(rng.normal(size=(self.count, width)) * 3.0 + 0.5, dtype)
        self.parts = jnp.asarray(rng.normal(size=(parts, self.count, width)), jnp.float32)
        given = [jnp.linspace(-1.0, 2.0, width, dtype=weight or dtype), jnp.linspace(1.0, -3.0, width, dtype=dtype)]
        self.weights = given if "layer" in name else given[:1]
        kernel, self.ref = KERNELS[name]
        # XLA would not round a sum before its norm. LLVM, which compiles the kernel for a GPU, does.
        options = {"xla_allow_excess_precision": False}
        self.program = jax.jit(partial(kernel, eps=EPS, num_ctas=1, interpret=INTERPRET), compiler_options=options)

    @property
    def arrays(self) -> tuple[jax.Array, ...]:
        return (self.x, self.parts) if "add" in self.name else (self.x,)

    def run(self, count: int, *arrays: jax.Array) -> tuple[np.ndarray, ...]:
        """Return what the kernel makes of the first ``count`` rows, the others being NaN."""
        padded = [np.array(array) for array in arrays or self.arrays]
        for array in padded:
            array[..., count:, :] = np.nan
        with watched():
            found = jax.block_until_ready(self.program(*padded, *self.weights, jnp.int32(count)))
        return tuple(np.asarray(one)[:count] for one in (found if isinstance(found, tuple) else (found,)))

    def wanted(self) -> np.ndarray:
        """Return the norms in float64, of the sums as they are rounded."""
        x = self.x
        if "add" in self.name:
            x, _ = self.ref(*self.arrays, *self.weights, jnp.int32(self.count), eps=EPS)
        wide, weight = (np.asarray(one).astype(np.float64) for one in (x, self.weights[0]))
        if "layer" not in self.name:
            return wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + EPS) * weight
        wide -= wide.mean(-1, keepdims=True)
        normed = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + EPS)
        return normed * weight + np.asarray(self.weights[1]).astype(np.float64)


def check(rows: Rows) -> None:
    used = rows.count - 3
    *total, normed = found = rows.run(used)
    tolerance = TOLERANCE[rows.dtype]
    np.testing.assert_allclose(normed.astype(np.float64), rows.wanted()[:used], rtol=tolerance, atol=6 * tolerance)
    twin = rows.ref(*rows.arrays, *rows.weights, jnp.int32(used), eps=EPS)
    for one in total:
        np.testing.assert_array_equal(one, twin[0][:used])
    if rows.dtype == "bfloat16":  # so that an error below half a bit is found
        assert (normed == (twin[1] if total else twin)[:used]).mean() > 0.98
    backwards = rows.run(rows.count, *(array[..., ::-1, :] for array in rows.arrays))
    for one, few, many in zip(backwards, rows.run(1), found, strict=True):
        np.testing.assert_array_equal(one[::-1][:used], many)
        np.testing.assert_array_equal(few, many[:1])


@pytest.mark.parametrize(("name", "width"), [("add_rms_norm", LONG), ("layer_norm", HEAD)])
def test_rows_are_right_in_any_company(name: str, width: int) -> None:
    check(Rows(name, width, dtype="bfloat16" if "add" in name else "float32"))


@pytest.mark.full  # each is interpreted anew
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [LONG, HEAD, 256])
@pytest.mark.parametrize("name", KERNELS)
def test_all_rows_are_right_in_any_company(name: str, width: int, dtype: str) -> None:
    check(Rows(name, width, dtype=dtype, weight="float32" if width == HEAD else None, parts=1 if width == HEAD else 2))


@pytest.mark.full  # is interpreted anew
def test_without_weight_or_bias() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(TILE, HEAD)), jnp.float32)
    weight = jnp.linspace(-1.0, 2.0, HEAD, dtype=jnp.float32)
    count = jnp.int32(TILE)
    for scale, bias in ((None, None), (weight, None), (None, weight)):
        found = run(layer_norm, x, scale, bias, count, eps=EPS, num_ctas=1)
        np.testing.assert_allclose(found, layer_norm_ref(x, scale, bias, count, eps=EPS), atol=2e-6)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"width": 4096}, None),
        ({"width": 128}, None),
        ({"width": 2880}, "2880 numbers: not a multiple of 128"),
        ({"width": 36}, "36 numbers: not a multiple of 8"),
        ({"width": 32768}, "up to 12288"),
        ({"width": 4096, "capability": 7}, "capability 7 is below 8.0"),
    ],
)
def test_what_it_cannot_do_has_a_reason(sizes: dict[str, Any], message: str | None) -> None:
    reason = supports(**sizes)
    assert reason is None if message is None else message in str(reason)


def test_what_it_cannot_do_is_refused() -> None:
    x = jnp.zeros((8, 2880), jnp.bfloat16)
    with pytest.raises(NotImplementedError, match="2880 numbers"):
        rms_norm(x, x[0], jnp.int32(8), eps=EPS)
    with pytest.raises(ValueError, match="neither bfloat16 nor float32"):
        rms_norm(x, x[0].astype(jnp.float16), jnp.int32(8), eps=EPS)
