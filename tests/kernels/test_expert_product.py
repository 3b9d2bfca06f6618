"""Products of experts against float64, and against themselves to the bit."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.expert_product import GPU_TILE_ROWS, TILE_ROWS, expert_product_ref, packed_expert_product_ref
from pallas_kernels.packed_product import pack
from tests.support.native import native

DTYPES = ("float32", "bfloat16")
TOLERANCE = 2e-5
"""Of the float32 sums, whatever the operands' type: they are exact, and the outputs have a variance of 1."""
S, LAYER = 150, 1
COUNTS = {
    "uneven": (TILE_ROWS + 1, 0, 1, 3 * TILE_ROWS, 2),
    "the last ones empty": (5, TILE_ROWS, 0, 0, 0),
    "all to one": (0, 0, S, 0, 0),
    "one row": (0, 1, 0, 0, 0),
    "none": (0, 0, 0, 0, 0),
    "every row": (30, 30, 30, 30, 30),
}
"""Rows of each expert."""
Product = Callable[..., Any]
"""(x, weights [L, E, O, I], layer, starts, dtype=...) -> the products of the experts' rows."""


def of_rows(product: Product) -> Product:
    """Without rows of no expert, which hold nothing."""

    def multiply(x: Any, weights: Any, layer: Any, starts: Any, **more: Any) -> np.ndarray:
        return np.asarray(product(x, weights, layer, starts, **more))[: starts[-1]]

    return multiply


@cache
def plain() -> Product:
    return of_rows(jax.jit(expert_product_ref, static_argnames=("dtype", "tile_rows")))


def large_tiles() -> Product:
    return partial(plain(), tile_rows=GPU_TILE_ROWS)


def of_packed(product: Product) -> Product:
    program = jax.jit(product, static_argnames=("out_features", "dtype"))

    def multiply(x: Any, weights: Any, layer: Any, starts: Any, **more: Any) -> Any:
        return program(x, pack(weights), layer, starts, out_features=weights.shape[2], **more)

    return of_rows(multiply)


@cache
def packed_ref() -> Product:
    return of_packed(packed_expert_product_ref)


@cache
def native_product() -> Product:
    return of_packed(native().expert_product)


ALL = [plain, large_tiles, packed_ref, native_product]


def draw(inputs: int, outputs: int, dtype: str, experts: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """x and two layers of weights, zero-mean."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(2, experts, outputs, inputs)) * inputs**-0.5
    return rng.normal(size=(S, inputs)).astype(jnp.dtype(dtype)), weights.astype(jnp.dtype(dtype))


def starts_of(counts: Sequence[int]) -> np.ndarray:
    return np.cumsum([0, *counts], dtype=np.int32)


def in_float64(x: np.ndarray, weights: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    y = np.zeros((sum(counts), weights.shape[2]))
    for expert, (first, end) in enumerate(pairwise(starts_of(counts))):
        y[first:end] = x[first:end].astype(np.float64) @ weights[LAYER, expert].astype(np.float64).T
    return y


@pytest.mark.parametrize("product", ALL)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
def test_matches_float64(counts: Sequence[int], dtype: str, product: Callable[[], Product]) -> None:
    x, weights = draw(65, 70, dtype)
    got = product()(x, weights, np.int32(LAYER), starts_of(counts))
    np.testing.assert_allclose(got, in_float64(x, weights, counts), atol=TOLERANCE, rtol=0)
    assert got.dtype == np.float32


@pytest.mark.parametrize("product", ALL)
def test_sums_are_rounded_to_the_wanted_type(product: Callable[[], Product]) -> None:
    x, weights = draw(65, 70, "bfloat16")
    arguments = x, weights, np.int32(LAYER), starts_of(COUNTS["uneven"])
    sums, rounded = (product()(*arguments, dtype=dtype) for dtype in ("float32", "bfloat16"))
    np.testing.assert_array_equal(rounded, sums.astype(rounded.dtype))


@pytest.mark.parametrize("product", ALL)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_asked_for_is_not_read(dtype: str, product: Callable[[], Product]) -> None:
    """NaN in the other layer, in experts without rows, and in rows of no expert."""
    x, weights = draw(65, 70, dtype)
    counts = COUNTS["uneven"]
    arguments = np.int32(LAYER), starts_of(counts)
    want = product()(x, weights, *arguments)
    x[sum(counts) :] = weights[1 - LAYER] = weights[LAYER, 1] = np.nan
    np.testing.assert_array_equal(product()(x, weights, *arguments), want)


@pytest.mark.shipped
@pytest.mark.parametrize("product", ALL)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_keeps_its_bits(dtype: str, product: Callable[[], Product]) -> None:
    """Whatever rows it has before it and beside it, of its expert or of others."""
    x, weights = draw(301, 129, dtype)
    layer = np.int32(LAYER)
    alone = {
        expert: product()(x, weights, layer, starts_of([S * (e == expert) for e in range(5)])) for expert in range(5)
    }
    for counts in COUNTS.values():
        got = product()(x, weights, layer, starts_of(counts))
        for expert, (first, end) in enumerate(pairwise(starts_of(counts))):
            np.testing.assert_array_equal(got[first:end], alone[expert][first:end])


@pytest.mark.parametrize("dtype", DTYPES)
def test_native_bits_are_those_of_a_packed_product(dtype: str) -> None:
    """For any number of rows."""
    x, weights = draw(301, 129, dtype)
    stack = pack(weights[LAYER])
    want = native().packed_product(jnp.asarray(x), stack, jnp.int32(1), jnp.int32(S), out_features=129)
    for rows in (1, 6, 7, 97, S):
        starts = starts_of([0, rows, 0, 0, 0])
        got = native_product()(x[:rows], weights, np.int32(LAYER), starts)
        np.testing.assert_array_equal(got, want[:rows])


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([0, 5, 4, 6, 6, 6], "do not ascend"),
        ([1, 5, 5, 6, 6, 6], "do not start at 0"),
        ([0, 5, 5, 6, 6, S + 1], "more rows than there are"),
        ([0, 5, 5, 6, 6], "not one start for each expert"),
    ],
)
def test_starts_that_lead_past_an_array_are_refused(starts: list[int], message: str) -> None:
    x, weights = draw(8, 8, "float32")
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=message):
        jax.block_until_ready(native_product()(x, weights, np.int32(LAYER), np.array(starts, np.int32)))


@pytest.mark.parametrize("layer", [-1, 2])
def test_a_layer_that_does_not_exist_is_refused(layer: int) -> None:
    x, weights = draw(8, 8, "float32")
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="layer does not exist"):
        jax.block_until_ready(native_product()(x, weights, np.int32(layer), starts_of(COUNTS["uneven"])))


def test_operands_of_two_types_are_refused() -> None:
    x, weights = draw(8, 8, "float32")
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        native_product()(x, weights.astype(jnp.bfloat16), np.int32(LAYER), starts_of(COUNTS["uneven"]))


@pytest.mark.parametrize("kind", ["native", "plain"])
def test_the_stack_is_not_copied(kind: str) -> None:
    """A scan over the layers allocates nothing of the size of a layer's experts."""
    _, weights = draw(256, 256, "float32", experts=16)
    x = jnp.zeros((8, 256))
    starts = jnp.asarray(starts_of([1] * 8 + [0] * 8))
    stack = jnp.asarray(weights) if kind == "plain" else pack(weights)

    def walk(x: jax.Array, stack: jax.Array) -> jax.Array:
        def body(x: jax.Array, layer: jax.Array) -> tuple[jax.Array, None]:
            if kind == "plain":
                return expert_product_ref(x, stack, layer, starts), None
            return native().expert_product(x, stack, layer, starts, out_features=256), None

        return jax.lax.scan(body, x, jnp.arange(2))[0]

    memory = jax.jit(walk).lower(x, stack).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < weights[0].nbytes / 4
