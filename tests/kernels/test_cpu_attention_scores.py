"""Windows that are operands, soft caps and sinks of the native attention."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.support.attention_cases import LAYER, Case, Inputs, make_inputs
from tests.support.attention_cases import run as run_kernel
from tests.support.native import native

CASE = Case(rows=((1, 70), (1, 9), (20, 90), (7, 7)), soft_cap=1.5, sinks=True)


def run(case: Case, inputs: Inputs) -> np.ndarray:
    return run_kernel(native().ragged_paged_attention, case, inputs)


def arrays_of(case: Case, inputs: Inputs) -> tuple[Any, ...]:
    """The positional arguments."""
    rows = inputs.tables, inputs.starts, inputs.lens
    counts = len(case.rows), inputs.num_decodes
    q, cache = (jnp.asarray(array, case.dtype) for array in (inputs.q, inputs.cache))
    return q, cache, jnp.int32(LAYER), *map(jnp.asarray, rows), *map(jnp.int32, counts)


def test_each_turn_of_a_scan_has_its_window() -> None:
    """And the bits of a window that the program knows, or of none."""
    case, windows = replace(CASE, soft_cap=None, sinks=False), (1, 2**30, 8, 64, 2**31 - 1)
    inputs = make_inputs(case)
    attend = partial(native().ragged_paged_attention, *arrays_of(case, inputs), scale=case.head_dim**-0.5)

    @jax.jit
    def scan(windows: jax.Array) -> Any:
        return lax.scan(lambda carry, window: (carry, attend(window=window)), None, windows)[1]

    outputs = np.asarray(scan(jnp.array(windows)))[:, : inputs.starts[len(case.rows)]]
    for window, out in zip(windows, outputs, strict=True):
        known = replace(case, window=None if window > 1000 else window)
        np.testing.assert_array_equal(out, run(known, inputs))
    assert len(np.unique(outputs.reshape(len(windows), -1), axis=0)) == 4


def test_a_window_longer_than_any_context_is_none() -> None:
    inputs = make_inputs(CASE)
    np.testing.assert_array_equal(run(replace(CASE, window=10**12), inputs), run(CASE, inputs))


def test_a_sink_of_no_weight_is_none() -> None:
    inputs = make_inputs(CASE)
    without = replace(inputs, sinks=np.full_like(inputs.sinks, -np.inf))
    np.testing.assert_array_equal(run(CASE, without), run(replace(CASE, sinks=False), inputs))


def test_sinks_of_another_dtype_are_taken() -> None:
    case = replace(CASE, dtype="bfloat16")
    inputs = make_inputs(case)
    rounded = replace(inputs, sinks=inputs.sinks.astype(jnp.bfloat16))
    wide = replace(inputs, sinks=rounded.sinks.astype(np.float32))
    np.testing.assert_array_equal(run(case, rounded), run(case, wide))


def test_what_is_not_a_number_is_not_hidden() -> None:
    inputs = make_inputs(CASE)
    q = inputs.q.copy()
    q[5, 1, 3] = np.nan
    assert np.argwhere(np.isnan(run(CASE, replace(inputs, q=q))).any(-1)).tolist() == [[5, 1]]


def test_a_capped_score_has_the_digits_of_float32() -> None:
    """One key of value 1 beside a sink as large as its score should be: the output tells by how much it is not."""
    cap = 1024.0
    x = np.concatenate([np.geomspace(1e-4, 20.0, 500), np.linspace(0.6, 0.65, 100)]).astype(np.float32)
    x = np.concatenate([x, -x])
    heads = len(x)
    cache = np.ones((1, 1, 2, 1, 1, 1), np.float32)
    exact = cap * np.tanh(x.astype(np.float64))
    sinks = exact.astype(np.float32)
    out = native().ragged_paged_attention(
        jnp.asarray(x * np.float32(cap)).reshape(1, heads, 1),
        jnp.asarray(cache),
        *(jnp.int32(0), jnp.zeros((1, 1), jnp.int32), jnp.array([0, 1]), jnp.array([1]), jnp.int32(1), jnp.int32(1)),
        scale=1.0,
        soft_cap=cap,
        sinks=jnp.asarray(sinks),
    )
    share = np.asarray(out).reshape(-1).astype(np.float64)
    capped = sinks + np.log(share / (1 - share))
    np.testing.assert_allclose(capped, exact, rtol=3e-7, atol=3e-7)
    np.testing.assert_array_equal(capped[heads // 2 :], -capped[: heads // 2])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"window": 0}, "window is 0, must be positive"),
        ({"soft_cap": 0.0}, "soft_cap is 0.0, must be positive"),
        ({"soft_cap": float("nan")}, "soft_cap is nan, must be positive"),
    ],
)
def test_what_is_not_positive_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        native().ragged_paged_attention(*arrays_of(CASE, make_inputs(CASE)), scale=1.0, **options)


def test_operands_that_do_not_fit_are_refused() -> None:
    """By the kernel, which alone knows the value of a window, and whom no annotation stands before."""
    inputs = make_inputs(CASE)
    with pytest.raises(jax.errors.JaxRuntimeError, match="the window is not positive"):
        run(replace(CASE, window=-1, window_operand=True), inputs)
    *given, _ = arrays_of(CASE, inputs)
    out = jax.ShapeDtypeStruct(inputs.q.shape, inputs.q.dtype)
    call = jax.ffi.ffi_call(native()._target(CASE.dtype, "RaggedPagedAttention"), out)
    with pytest.raises(jax.errors.JaxRuntimeError, match="not one sink for each query head"):
        call(*given, jnp.int32(1), jnp.zeros(CASE.heads + 1), scale=np.float32(1), soft_cap=np.float32(0))
