"""The dense products with codes for NVIDIA GPUs, interpreted, against their definition and float64."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels.activations import gated_ref
from pallas_kernels.gpu.coded_weights import coded_gated_product, coded_parts, coded_rows
from pallas_kernels.gpu.dense_support import TIERS, TILE_K, Tile, Tiles, supports
from pallas_kernels.plain_codes import plain_product, plain_rows
from pallas_kernels.quantized_product import GroupedCodes
from tests.support.dense_products import Multiply, exact_rows, in_steps, multiplying

I, O, T = 4 * TILE_K, 128, TIERS[1] + 8  # noqa: E741
TILES = Tile(64, 64), Tile(128, 64), Tile(128, 128)
"""Of each tier another one. The first leaves room for two steps in a stage."""


@dataclass(frozen=True)
class Coded:
    """Codes of a dtype, with a scale for each ``group`` of inputs; None: for all."""

    dtype: Any
    group: int | None = None
    scale: Any = jnp.bfloat16

    @property
    def numbers(self) -> np.ndarray:
        """What each code means, of those that mean a number."""
        if self.dtype == jnp.uint4:
            return np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
        if self.dtype == jnp.float8_e4m3fn:
            found = np.arange(256, dtype=np.uint8).view(self.dtype).astype(np.float64)
            return found[np.isfinite(found)]
        most = 8 if self.dtype == jnp.int4 else 128
        return np.arange(-most, most).astype(np.float64)

    @property
    def options(self) -> dict[str, Any]:
        return {"group": self.group or I}

    def case(self, *, exact: bool, outputs: int = O) -> tuple[jax.Array, GroupedCodes, np.ndarray]:
        """Rows, two weights of which the first has scales that are NaN, and the numbers of both before scales of whole
        outputs. With ``exact`` the sum of a step is exact, and scales are powers of two."""
        rng, values = np.random.default_rng(7), self.numbers
        kept = np.flatnonzero((values * 4 % 1 == 0) & (np.abs(values) < 16)) if exact else np.arange(len(values))
        chosen = kept[rng.integers(len(kept), size=(2, outputs, I))]
        stored = jnp.asarray(chosen if self.dtype == jnp.uint4 else values[chosen], self.dtype)
        size = 2, 1 if self.group is None else I // self.group, outputs
        scales = 2.0 ** -rng.integers(6, 9, size=size) if exact else rng.normal(size=size) / np.abs(values).max() / 16
        scales[0] = np.nan
        weight = GroupedCodes(stored, jnp.asarray(scales, self.scale))
        rows = exact_rows(T, I, 16) if exact else rng.normal(size=(T, I))
        numbers = values[chosen]
        if self.group is not None:
            factors = np.asarray(weight.scales.astype(jnp.bfloat16)).astype(np.float64)
            numbers = numbers * np.repeat(factors, self.group, axis=1).swapaxes(1, 2)
            numbers = np.asarray(numbers.astype(ml_dtypes.bfloat16)).astype(np.float64)
        return jnp.asarray(rows, jnp.bfloat16), weight, numbers

    def factors(self, weight: GroupedCodes) -> Any:
        """Return the scales that multiply sums."""
        return 1 if self.group is not None else np.asarray(weight.scales)[1, 0].astype(np.float32)


CODED = {
    "int8": Coded(jnp.int8),
    "fp8": Coded(jnp.float8_e4m3fn, None, jnp.float32),
    "int4": Coded(jnp.int4, 32),
    "mxfp4": Coded(jnp.uint4, 32),
    "fp8 in groups of 128": Coded(jnp.float8_e4m3fn, 128, jnp.float32),
    "fp4 in groups of 16": Coded(jnp.uint4, 16, jnp.float16),
}
QUICK = "int4"


@cache
def parts_of(name: str) -> Multiply:
    return multiplying(coded_parts, tiles=TILES, **CODED[name].options)


@pytest.mark.parametrize(
    "name", [QUICK, *(pytest.param(name, marks=pytest.mark.full) for name in CODED if name != QUICK)]
)
def test_numbers_are_those_of_the_definition_in_every_tile(name: str) -> None:
    coded = CODED[name]
    x, weight, numbers = coded.case(exact=True)
    wanted = in_steps(x, numbers, 2) * coded.factors(weight)
    for count in (5, TIERS[0] + 1):
        np.testing.assert_array_equal(parts_of(name)(x, weight, count), wanted[:, :count])


@pytest.mark.full  # as above
@pytest.mark.parametrize("name", CODED)
def test_all_codes_near_float64_and_xlas_product(name: str) -> None:
    coded, count = CODED[name], 9
    x, weight, numbers = coded.case(exact=False)
    got = sum(parts_of(name)(x, weight, count))
    wanted = np.asarray(x[:count]).astype(np.float64) @ numbers[1].T * coded.factors(weight)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
    plain = weight._replace(scales=weight.scales.swapaxes(1, 2))
    about: dict[str, Any] = {"bits": 8, "out_features": O, **coded.options}
    twin = plain_product(x, plain, jnp.int32(1), jnp.int32(count), **about)[:count]
    np.testing.assert_allclose(got, twin, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_rows_of_a_table() -> None:
    coded, ids = CODED["int4"], jnp.asarray([3, 0, O - 1])
    _, weight, _ = coded.case(exact=False)
    plain = weight._replace(scales=weight.scales.swapaxes(1, 2)).only(1)
    got = coded_rows(weight.only(1), ids, bits=4, **coded.options)
    np.testing.assert_array_equal(got, plain_rows(plain, ids, bits=4, **coded.options))


@pytest.mark.full  # the interpreter computes hundreds of tiles
def test_a_row_has_its_bits_among_any_number_of_rows() -> None:
    coded = CODED["int4"]
    x, weight, numbers = coded.case(exact=True)
    wanted = in_steps(x, numbers, 2)
    x, wanted = jnp.tile(x, (4, 1))[:1024], np.tile(wanted, (1, 4, 1))
    for count in (1, 64, 256, 1024):
        np.testing.assert_array_equal(parts_of("int4")(x, weight, count), wanted[:, :count])


@pytest.mark.full  # each interprets the kernel anew
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_gates(name: str) -> None:
    coded = CODED[name]
    x, weight, numbers = coded.case(exact=True, outputs=2 * O)
    options: dict[str, Any] = {"activation": "silu", "dtype": jnp.float32}
    tiles = Tile(64, 256), Tile(128, 128), Tile(128, 256)
    multiply = multiplying(coded_gated_product, tiles=tiles, **coded.options, **options)
    gate_up = in_steps(x, numbers, 1)[0] * coded.factors(weight)
    wanted = gated_ref(jnp.asarray(gate_up), jnp.int32(T), **options)
    for count in (3, TIERS[1] + 1):
        np.testing.assert_allclose(multiply(x, weight, count), wanted[:count], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({}, None),
        ({"activation": "silu", "outputs": 256}, None),
        ({"codes": "uint4", "group": 16}, None),
        ({"outputs": 96}, "64 inputs and 96 outputs are not multiples of 64 and 64"),
        ({"outputs": 192, "activation": "silu"}, "192 outputs are not multiples of 64 and 256"),
        ({"dtype": "float16"}, "codes of int8 for products in float16"),
        ({"codes": "float8_e5m2"}, "codes of float8_e5m2"),
        ({"group": 48}, "groups of 48 inputs"),
        ({"capability": 8}, "compute capability 8 has no wgmma"),
    ],
)
def test_what_it_cannot_do_has_a_reason(sizes: dict[str, Any], message: str | None) -> None:
    reason = supports(**{"inputs": TILE_K, "outputs": 64, "dtype": "bfloat16", "codes": "int8", **sizes})
    assert reason is None if message is None else message in str(reason)


def test_weights_that_it_cannot_multiply_are_refused() -> None:
    x, codes = jnp.zeros((8, TILE_K), jnp.bfloat16), jnp.zeros((1, 64, TILE_K), jnp.int8)
    scales = jnp.ones((1, 1, 64))
    for weight in (GroupedCodes(codes, scales, zeros=scales), GroupedCodes(codes, scales, minimums=scales)):
        with pytest.raises(NotImplementedError, match="zero points, minimums"):
            coded_parts(x, weight, jnp.int32(0), jnp.int32(1), group=TILE_K)


def test_tiles_of_few_rows_occupy_the_multiprocessors_of_an_h200() -> None:
    def columns(outputs: int, codes: str, *, gated: bool = False) -> list[int]:
        tiles = Tiles.of(4096, outputs, gated=gated, num_ctas=132, codes=codes, group=32 if codes == "int4" else None)
        assert tiles.stages >= 5
        return [tile.columns for tile in tiles.by_tier]

    assert columns(6144, "int8") == columns(6144, "int4") == [64, 128, 192]
    assert columns(4096, "int8") == [64, 128, 256]
    assert columns(28672, "int8", gated=True) == [256, 256, 256]
