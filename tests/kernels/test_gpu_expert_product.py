"""The products of experts for NVIDIA GPUs, interpreted, against their twin and float64."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels.expert_product import expert_product_ref
from pallas_kernels.gpu import expert_tiles
from pallas_kernels.gpu.expert_product import expert_product
from pallas_kernels.gpu.expert_support import COMPUTE, ROWS, STAGES, TILE_K, columns_of
from tests.support.interpreted import RaceError, run

I, O, S = TILE_K * (STAGES[0] + 1), 2 * COMPUTE * 96, ROWS + 22  # noqa: E741
"""Outputs of two tiles."""
CODED_OUTPUTS = 3 * 64
"""With codes: half a tile lies past them."""
COUNTS = (ROWS + 3, 0, 4, 9, 0)
"""Rows of each expert, of which none but the first begins at a multiple of 8."""
NUM_CTAS = 3
"""Of eight items, so that none has only one."""


def case(counts: Sequence[int] = COUNTS, dtype: Any = jnp.bfloat16, inputs: int = I) -> tuple[Any, ...]:
    """Arguments: zero-mean, NaN in the other layer, in experts without rows, and in rows of no expert."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(S, inputs))
    x[sum(counts) :] = np.nan
    weights = rng.normal(size=(2, len(counts), O, inputs)) * inputs**-0.5
    weights[0] = weights[1, np.equal(counts, 0)] = np.nan
    starts = np.cumsum([0, *counts], dtype=np.int32)
    return jnp.asarray(x, dtype), jnp.asarray(weights, dtype), jnp.int32(1), jnp.asarray(starts)


def in_float64(x: Any, weights: Any, _: Any, starts: Any) -> np.ndarray:
    y = np.zeros((int(starts[-1]), weights.shape[2]))
    for expert, (first, end) in enumerate(pairwise(np.asarray(starts))):
        weight = np.asarray(weights)[1, expert].astype(np.float64)
        y[first:end] = np.asarray(x)[first:end].astype(np.float64) @ weight.T
    return y


@dataclass(frozen=True)
class Coded:
    """Codes of a dtype, with a scale for each ``group`` of inputs; None: none that the kernel knows."""

    dtype: Any
    group: int | None = None

    @property
    def numbers(self) -> np.ndarray:
        """What each code means, by code, of those that mean a number."""
        if self.dtype == jnp.uint4:
            return np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
        if self.dtype == jnp.float8_e4m3fn:
            found = np.arange(256, dtype=np.uint8).view(self.dtype).astype(np.float64)
            return found[np.isfinite(found)]
        most = 8 if self.dtype == jnp.int4 else 128
        return np.arange(-most, most).astype(np.float64)

    def case(self) -> tuple[tuple[Any, ...], np.ndarray]:
        """Arguments with all codes, and the weights that they mean, with the scales rounded as the kernel does. Unused
        experts have scales that are NaN; without scales their codes mean NaN, if any does."""
        x, weights, layer, starts = case()
        weights = weights[:, :, :CODED_OUTPUTS]
        rng, values = np.random.default_rng(7), self.numbers
        chosen = rng.integers(len(values), size=weights.shape)
        unused = np.equal(COUNTS, 0)
        numbers = values[chosen]
        stored = jnp.asarray(chosen if self.dtype == jnp.uint4 else numbers, self.dtype)
        if self.group is None:
            if self.dtype == jnp.float8_e4m3fn:
                stored = stored.at[:, unused].set(jnp.nan)
            return (x, stored, layer, starts), numbers
        scales = rng.normal(size=(2, len(COUNTS), I // self.group, CODED_OUTPUTS)) / np.abs(values).max()
        scales[0] = scales[1, unused] = np.nan
        factors = jnp.asarray(scales, jnp.bfloat16)
        by_input = np.repeat(np.asarray(factors).astype(np.float64).swapaxes(2, 3), self.group, axis=-1)
        wanted = np.asarray(jnp.asarray(numbers * by_input, jnp.bfloat16)).astype(np.float64)
        return (x, stored, layer, starts, factors), wanted


CODED = {
    "int8": Coded(jnp.int8),
    "int4 in groups of 32": Coded(jnp.int4, 32),
    "int8 in groups of 64": Coded(jnp.int8, 64),
    "fp8": Coded(jnp.float8_e4m3fn),
    "mxfp4": Coded(jnp.uint4, 32),
    "fp4 in groups of 16": Coded(jnp.uint4, 16),
}


def multiply(args: tuple[Any, ...], **options: Any) -> np.ndarray:
    """The products of the experts' rows; the others hold nothing."""
    return np.asarray(run(expert_product, *args, num_ctas=NUM_CTAS, **options))[: int(args[3][-1])]


@cache
def multiplied(dtype: str = "bfloat16") -> np.ndarray:
    return multiply(case(dtype=jnp.dtype(dtype)))


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.full)])
def test_kernel_equals_reference_and_float64(dtype: str) -> None:
    args = case(dtype=jnp.dtype(dtype))
    got = multiplied(dtype)
    np.testing.assert_allclose(got, expert_product_ref(*args)[: len(got)], atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(got, in_float64(*args), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "name", ["mxfp4", *(pytest.param(name, marks=pytest.mark.full) for name in CODED if name != "mxfp4")]
)
def test_codes_become_numbers(name: str) -> None:
    coded = CODED[name]
    args, weights = coded.case()
    got = multiply(args, group=coded.group)
    wanted = in_float64(args[0], weights, *args[2:4])
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.full  # each interprets the kernel anew
@pytest.mark.parametrize("counts", [(0, 0, S, 0, 0), (0, 1, 0, 0, 0), (0, 0, 0, 0, 0), (3, 9, 1, 2, 7)])
def test_other_rows_of_experts(counts: Sequence[int]) -> None:
    args = case(counts)
    np.testing.assert_allclose(multiply(args), in_float64(*args), atol=1e-5, rtol=1e-5)


@pytest.mark.full  # as above
@pytest.mark.parametrize("counts", [COUNTS, (0, 64, 2, 0, 20)])
def test_tiles_of_128_rows_give_the_same_bits(counts: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    args = case(counts)
    wanted = multiplied() if counts == COUNTS else multiply(args)
    monkeypatch.setattr(expert_tiles, "MANY_ROWS", 1)
    np.testing.assert_array_equal(multiply(args), wanted)


@pytest.mark.full  # as above
def test_columns_stored_one_part_after_another_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_tiles, "stored_columns", lambda *_, **__: 48)
    np.testing.assert_array_equal(multiply(case()), multiplied())


@pytest.mark.full  # as above
def test_bits_do_not_depend_on_other_rows() -> None:
    """Of rows at the same places of other tiles, beside other rows. The proof at start has other places too, at which a
    product on a CPU has other bits."""
    x, weights, layer, starts = case()
    counts = 3, 0, 4, 15, 0
    moved = np.concatenate([np.arange(3), np.arange(starts[2], starts[3])])
    others = jnp.asarray(np.random.default_rng(5).normal(size=x.shape), x.dtype)
    fewer = jnp.asarray(np.cumsum([0, *counts]), jnp.int32)
    got = multiply((others.at[: len(moved)].set(x[moved]), weights, layer, fewer))
    np.testing.assert_array_equal(got[: len(moved)], multiplied()[moved])


@pytest.mark.full  # as above
def test_sums_are_rounded_to_the_wanted_type() -> None:
    got = multiply(case(), dtype=jnp.bfloat16)
    np.testing.assert_array_equal(got, multiplied().astype(jnp.bfloat16))


@pytest.mark.parametrize(
    ("inputs", "outputs", "dtype", "message"),
    [
        (TILE_K, 64, jnp.float32, "weights of float32"),
        (TILE_K + 8, 64, jnp.bfloat16, "72 inputs"),
        (TILE_K, 96, jnp.bfloat16, "96 outputs are not multiples of 64 and 64"),
    ],
)
def test_what_it_cannot_do_is_refused(inputs: int, outputs: int, dtype: Any, message: str) -> None:
    x, weights = jnp.zeros((8, inputs), dtype), jnp.zeros((1, 1, outputs, inputs), dtype)
    with pytest.raises(NotImplementedError, match=message):
        expert_product(x, weights, jnp.int32(0), jnp.array([0, 8]))


def test_results_of_16_bits_need_more_outputs() -> None:
    x, weights = jnp.zeros((8, TILE_K), jnp.bfloat16), jnp.zeros((1, 1, 2880, TILE_K), jnp.bfloat16)
    with pytest.raises(NotImplementedError, match="2880 outputs are not multiples of 64 and 128"):
        expert_product(x, weights, jnp.int32(0), jnp.array([0, 8]), dtype=jnp.bfloat16)


@pytest.mark.parametrize(
    ("outputs", "result_bytes", "columns"), [(320, 4, 32), (2880, 4, 96), (2880, 2, 0), (384, 2, 64)]
)
def test_rows_of_results_begin_where_the_copy_engine_takes_them(outputs: int, result_bytes: int, columns: int) -> None:
    """An H200 ends a process that copies a row of 80 results of float32 from shared memory."""
    assert columns_of(outputs, coded=False, result_bytes=result_bytes) == columns
    assert columns * result_bytes % 128 == 0


@pytest.mark.full  # as for partial_recompute
def test_a_missing_wait_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no more steps than stages: the interpreter refuses a barrier that completes twice and nobody waits for."""
    monkeypatch.setattr(plgpu, "barrier_wait", lambda barrier: None)
    with pytest.raises(RaceError):
        run(expert_product, *case((5, 0, 0, 0, 0), inputs=TILE_K * STAGES[0]), num_ctas=8)


@pytest.mark.parametrize(
    ("dtype", "outputs", "x", "group", "message"),
    [
        (jnp.int8, 96, jnp.bfloat16, None, "multiples of 64"),
        (jnp.int8, 64, jnp.float16, None, "codes of int8 for products in float16"),
        (jnp.float8_e5m2, 64, jnp.bfloat16, None, "codes of float8_e5m2"),
        (jnp.int4, 64, jnp.bfloat16, 48, "groups of 48 inputs"),
        (jnp.int4, 64, jnp.bfloat16, 8, "groups of 8 inputs"),
    ],
)
def test_codes_that_it_cannot_read_are_refused(
    dtype: Any, outputs: int, x: Any, group: int | None, message: str
) -> None:
    weights = jnp.zeros((1, 1, outputs, TILE_K), dtype)
    scales = None if group is None else jnp.zeros((1, 1, 2, outputs), jnp.bfloat16)
    with pytest.raises(NotImplementedError, match=message):
        expert_product(jnp.zeros((8, TILE_K), x), weights, jnp.int32(0), jnp.array([0, 8]), scales, group=group)
