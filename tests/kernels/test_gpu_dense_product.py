"""The dense products for NVIDIA GPUs, interpreted, against their twins and float64; a row's bits in any company."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.activations import gated_ref
from pallas_kernels.dense_product import dense_product_ref, gated_product_ref, product_parts_ref
from pallas_kernels.gpu.dense_product import dense_product, gated_product, product_parts
from pallas_kernels.gpu.dense_support import GATED, ROWS, TIERS, TILE_K, Tile, Tiles, num_parts, supports, widest
from tests.support.dense_products import Multiply, exact_rows, in_steps, multiplying
from tests.support.interpreted import RaceError, run

I, O, T = 8 * TILE_K, 64, 5 * ROWS  # noqa: E741
TILES = Tile(64, 32), Tile(128, 32), Tile(128, 64)
"""Of each tier another one. The first leaves room for two steps in a stage."""
EDGES = (0, 1, 8, 9, 63, 64, 65, 129, 256, 257, T)
"""Numbers of rows at and beside the ends of granules, tiles and tiers."""


def inputs(outputs: int = O, dtype: Any = jnp.bfloat16, rows: int = T, width: int = I) -> tuple[jax.Array, jax.Array]:
    """Rows and a stack of weights, of which the other layer is NaN. The sum of a step is exact."""
    weight = np.random.default_rng(5).integers(-8, 9, size=(2, outputs, width)) * 2.0**-8
    weight[0] = np.nan
    return jnp.asarray(exact_rows(rows, width), dtype), jnp.asarray(weight, dtype)


def normal(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return zero-mean rows and weights of the shapes of these, whose products are near 1."""
    rng = np.random.default_rng(4)
    scaled = rng.normal(size=weight.shape) * x.shape[1] ** -0.5
    return jnp.asarray(rng.normal(size=x.shape), x.dtype), jnp.asarray(scaled, weight.dtype)


def in_float64(x: Any, weight: Any) -> np.ndarray:
    return np.asarray(x).astype(np.float64) @ np.asarray(weight[1]).astype(np.float64).T


@pytest.fixture(scope="module")
def parts() -> Multiply:
    return multiplying(product_parts, tiles=TILES)


def test_sums_have_one_order_in_every_tile(parts: Multiply) -> None:
    x, weight = inputs()
    wanted = in_steps(x, weight, 2)
    backwards = in_steps(x[:, ::-1], weight[..., ::-1], 2)[::-1]
    assert (backwards != wanted).mean() > 0.05
    assert (wanted[0] + wanted[1] != in_steps(x, weight, 1)).mean() > 0.05
    for count in (5, TIERS[0] + 1, TIERS[1] + 1):
        np.testing.assert_array_equal(parts(x, weight, count), wanted[:, :count])


def test_near_float64(parts: Multiply) -> None:
    (x, weight), count = normal(*inputs()), 9
    got = parts(x, weight, count)
    np.testing.assert_allclose(got.sum(axis=0), in_float64(x, weight)[:count], atol=2e-6)
    np.testing.assert_allclose(got, product_parts_ref(x, weight, jnp.int32(1), jnp.int32(count))[:, :count], atol=2e-6)


@pytest.mark.full  # the interpreter computes hundreds of tiles
def test_sums_have_one_order_among_any_number_of_rows(parts: Multiply) -> None:
    """At the ends of granules, tiles and tiers, at other places, and up to 2,048."""
    x, weight = inputs()
    wanted = in_steps(x, weight, 2)
    for count in EDGES:
        np.testing.assert_array_equal(parts(x, weight, count), wanted[:, :count])
        np.testing.assert_array_equal(parts(x[::-1], weight, count), wanted[:, ::-1][:, :count])
    x, wanted = jnp.tile(x, (7, 1))[:2048], np.tile(wanted, (1, 7, 1))
    for count in (1, 37, 500, 1000, 2047, 2048):
        np.testing.assert_array_equal(parts(x, weight, count), wanted[:, :count])


@pytest.mark.full  # each interprets the kernel anew
@pytest.mark.parametrize("columns", [16, 48, 96, 192])
@pytest.mark.parametrize("rows", [64, 128])
def test_all_tiles_give_the_same_bits(rows: int, columns: int) -> None:
    x, weight = inputs(outputs=192, width=6 * TILE_K)
    found = multiplying(product_parts, tiles=(Tile(rows, columns),) * 3)(x, weight, 70)
    np.testing.assert_array_equal(found, in_steps(x, weight, 2)[:, :70])


def test_parts_are_added_and_then_the_residual() -> None:
    x, weight = inputs()
    residual = jnp.asarray(np.random.default_rng(5).normal(size=(T, O)), jnp.bfloat16)
    count = TIERS[0] + 1
    multiply = multiplying(dense_product, tiles=TILES, dtype=jnp.bfloat16, out_features=O)
    first, second = in_steps(x, weight, 2)[:, :count]
    wanted = np.asarray(residual)[:count] + (first + second).astype(jnp.bfloat16)
    np.testing.assert_array_equal(multiply(x, weight, count, residual), wanted)
    options = {"out_features": O, "dtype": jnp.bfloat16}
    twin = dense_product_ref(x, weight, jnp.int32(1), jnp.int32(T), residual, **options)[:count]
    np.testing.assert_allclose(np.asarray(twin, np.float32), wanted.astype(np.float32), rtol=2.0**-7, atol=2.0**-7)


@pytest.mark.full  # interprets the kernel anew
@pytest.mark.parametrize("rows", [1, 200])
def test_odd_numbers_of_rows_and_steps(rows: int) -> None:
    """Rows that fill no tile, and inputs of which no stage holds two steps: in one part, with the residual."""
    x, weight = inputs(rows=rows, width=3 * TILE_K)
    residual = jnp.asarray(np.random.default_rng(5).normal(size=(rows, O)), jnp.bfloat16)
    options = {"dtype": jnp.bfloat16, "out_features": O}
    got = multiplying(dense_product, tiles=TILES, **options)(x, weight, rows, residual)
    np.testing.assert_array_equal(got, np.asarray(residual) + in_steps(x, weight, 1)[0].astype(jnp.bfloat16))
    wanted = dense_product_ref(x, weight, jnp.int32(1), jnp.int32(rows), residual, **options)
    np.testing.assert_allclose(got.astype(np.float32), wanted.astype(jnp.float32), rtol=2.0**-7, atol=1e-6)


@pytest.mark.full  # interprets the kernel anew
def test_float16() -> None:
    x, weight = inputs(dtype=jnp.float16)
    got = multiplying(product_parts, tiles=TILES)(x, weight, 70)
    np.testing.assert_array_equal(got, in_steps(x, weight, 2)[:, :70])


@pytest.mark.parametrize(
    "activation", ["silu", *(pytest.param(name, marks=pytest.mark.full) for name in GATED if name != "silu")]
)
def test_gates_and_what_they_multiply_are_of_one_weight(activation: str) -> None:
    x, weight = inputs(width=4 * TILE_K)
    x *= jnp.asarray(2.0**-6, x.dtype)
    options = {"activation": activation, "dtype": jnp.float32}
    multiply, count = multiplying(gated_product, tiles=TILES, **options), TIERS[0] + 1
    got = multiply(x, weight, count)
    gate_up = jnp.asarray(in_steps(x, weight, 1)[0])
    np.testing.assert_allclose(got, gated_ref(gate_up, jnp.int32(T), **options)[:count], rtol=1e-6, atol=1e-7)
    wanted = gated_product_ref(x, weight, jnp.int32(1), jnp.int32(T), **options)
    np.testing.assert_allclose(got, wanted[:count], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(multiply(x, weight, 3), got[:3])


@pytest.mark.full  # as for the product of experts
def test_a_missing_wait_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no more steps than stages: the interpreter refuses a barrier that completes twice and nobody waits for."""
    monkeypatch.setattr(plgpu, "barrier_wait", lambda barrier: None)
    x, weight = inputs(rows=ROWS)
    with pytest.raises(RaceError):
        run(product_parts, x, weight, jnp.int32(1), jnp.int32(9), tiles=TILES, num_ctas=4)


def all_tiles() -> Iterator[Tiles]:
    for shape in ((4096, 6144), (4096, 4096), (14336, 4096), (4096, 128256), (2880, 5120), (64, 16)):
        yield Tiles.of(*shape, gated=False, num_ctas=132)
    yield Tiles.of(4096, 28672, gated=True, num_ctas=132)


def test_tiles_fill_the_multiprocessors_of_an_h200() -> None:
    columns = [tuple((tile.rows, tile.columns) for tile in tiles.by_tier) for tiles in all_tiles()]
    assert columns[0] == ((64, 48), (128, 96), (128, 192))
    assert columns[1] == columns[2] == ((64, 64), (128, 128), (128, 256))
    assert columns[3] == ((64, 256), (128, 256), (128, 256))
    assert columns[-1] == ((64, 224), (128, 224), (128, 256))
    for tiles in all_tiles():
        assert tiles.stages >= 4 or tiles.inputs == TILE_K
        for tile in tiles.by_tier:
            steps = tiles.turns(tile) * tiles.steps_of_stage(tile)
            assert steps * TILE_K * tiles.parts == tiles.inputs
            assert tiles.outputs % tile.columns == 0


@pytest.mark.parametrize(
    ("shape", "parts"), [((4096, 4096), 2), ((4096, 4112), 1), ((14336, 4096), 2), ((2880, 4096), 1), ((64, 64), 1)]
)
def test_the_weight_alone_says_how_many_parts_there_are(shape: tuple[int, int], parts: int) -> None:
    assert num_parts(*shape) == parts


def test_results_that_are_summed_together_divide_the_outputs() -> None:
    assert [widest(outputs) for outputs in (4096, 2888, 16, 24)] == [64, 8, 16, 24]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"inputs": TILE_K, "outputs": 64, "dtype": "float32"}, "weights of float32"),
        ({"inputs": TILE_K + 8, "outputs": 64}, "72 inputs and 64 outputs are not multiples of 64 and 16"),
        ({"inputs": TILE_K, "outputs": 24}, "24 outputs"),
        ({"inputs": TILE_K, "outputs": 32, "activation": "silu"}, None),
        ({"inputs": TILE_K, "outputs": 48, "activation": "silu"}, "48 outputs are not multiples of 64 and 32"),
        ({"inputs": TILE_K, "outputs": 64, "activation": "gelu"}, "activation gelu is none of silu"),
        ({"inputs": TILE_K, "outputs": 64, "capability": 8}, "compute capability 8 has no wgmma"),
        ({"inputs": TILE_K, "outputs": 16}, None),
    ],
)
def test_what_it_cannot_do_has_a_reason(sizes: dict[str, Any], message: str | None) -> None:
    reason = supports(**{"dtype": "bfloat16", **sizes})
    assert reason is None if message is None else message in str(reason)


def test_what_it_cannot_do_is_refused() -> None:
    x, weight = jnp.zeros((8, TILE_K + 8), jnp.bfloat16), jnp.zeros((1, O, TILE_K + 8), jnp.bfloat16)
    with pytest.raises(NotImplementedError, match="72 inputs"):
        dense_product(x, weight, jnp.int32(0), jnp.int32(1), out_features=O)
    with pytest.raises(NotImplementedError, match="weights of float16 and inputs of bfloat16"):
        dense_product(x, weight.astype(jnp.float16), jnp.int32(0), jnp.int32(1), out_features=O)
    with pytest.raises(ValueError, match="tanh"):
        gated_product(x, weight, jnp.int32(0), jnp.int32(1), activation="tanh", dtype=jnp.bfloat16)
