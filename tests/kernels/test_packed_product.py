"""Packed products against float64, and against themselves to the bit."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.packed_product import PANEL, pack, packed_product_ref, rows
from tests.support.native import native

DTYPES = ("float32", "bfloat16")
TOLERANCE = 2e-5
"""Of the float32 sums, whatever the operands' type: they are exact, and the outputs have a variance of 1."""
SHAPES = [(1, 1, 1), (6, 64, 64), (7, 65, 129), (70, 200, 301)]
"""Tokens, inputs, outputs: no whole one of anything, whole ones, one and a part, several and a part."""
MORE_SHAPES = [pytest.param(*shape, marks=pytest.mark.full) for shape in ((3, 5, 7), (16, 768, 640), (256, 192, 96))]


def ref() -> Callable[..., jax.Array]:
    return packed_product_ref


def native_product() -> Callable[..., jax.Array]:
    return native().packed_product


def draw(tokens: int, inputs: int, outputs: int, dtype: str, *, layers: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """x and a stack of weights, zero-mean."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(tokens, inputs))
    weight = rng.normal(size=(layers, outputs, inputs)) * inputs**-0.5
    return x.astype(jnp.dtype(dtype)), weight.astype(jnp.dtype(dtype))


def multiply(
    product: Callable[..., jax.Array],
    x: np.ndarray,
    packed: jax.Array,
    num_tokens: int,
    outputs: int,
    layer: int = 1,
    **more: Any,
) -> np.ndarray:
    """The first ``num_tokens`` rows, which alone hold something."""
    arguments = (x, packed, np.int32(layer), np.int32(num_tokens))
    return np.asarray(program_of(product)(*arguments, out_features=outputs, **more))[: max(num_tokens, 0)]


@cache
def program_of(product: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return jax.jit(product, static_argnames=("out_features", "dtype"))


@pytest.mark.parametrize("dtype", [*DTYPES, "float16"])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (64, 2), (130, 33)])
def test_packing_keeps_every_number_in_its_place(outputs: int, inputs: int, dtype: str) -> None:
    _, weight = draw(1, inputs, outputs, dtype)
    packed = np.asarray(pack(weight))
    E = packed.shape[-1]
    assert E * packed.itemsize == 4
    for o, i in np.ndindex(outputs, inputs):
        np.testing.assert_array_equal(packed[:, o // PANEL, i // E, o % PANEL, i % E], weight[:, o, i])
    assert np.count_nonzero(packed) == np.count_nonzero(np.asarray(weight))


def test_rows_are_those_of_the_table() -> None:
    _, weight = draw(1, 33, 130, "bfloat16")
    ids = jnp.array([0, 129, 63, 64, 0])
    got = np.asarray(rows(pack(weight[0]), ids))
    np.testing.assert_array_equal(got[:, :33], np.asarray(weight[0][ids]))
    assert not got[:, 33:].any()


@pytest.mark.parametrize("product", [ref, native_product])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "inputs", "outputs"), [*SHAPES, *MORE_SHAPES])
def test_matches_float64(
    tokens: int, inputs: int, outputs: int, dtype: str, product: Callable[[], Callable[..., jax.Array]]
) -> None:
    x, weight = draw(tokens, inputs, outputs, dtype)
    got = multiply(product(), x, pack(weight), tokens, outputs)
    want = np.asarray(x).astype(np.float64) @ np.asarray(weight[1]).astype(np.float64).T
    np.testing.assert_allclose(got, want, atol=TOLERANCE, rtol=0)
    assert got.dtype == np.float32


@pytest.mark.parametrize("product", [ref, native_product])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "inputs", "outputs"), [*SHAPES, *MORE_SHAPES])
def test_sums_are_rounded_then_added_to_the_residual(
    tokens: int, inputs: int, outputs: int, dtype: str, product: Callable[[], Callable[..., jax.Array]]
) -> None:
    x, weight = draw(tokens, inputs, outputs, dtype)
    packed, real = pack(weight), max(tokens - 1, 1)
    residual = 3 * draw(tokens, outputs, 1, dtype)[0]
    sums = multiply(product(), x, packed, real, outputs)
    rounded = sums.astype(x.dtype)
    np.testing.assert_array_equal(multiply(product(), x, packed, real, outputs, dtype=dtype), rounded)
    got = multiply(product(), x, packed, real, outputs, residual=residual, dtype=dtype)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, residual[:real] + rounded)


@pytest.mark.parametrize("product", [ref, native_product])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_asked_for_is_not_read(dtype: str, product: Callable[[], Callable[..., jax.Array]]) -> None:
    """NaN in the other layer and in the tokens of padding."""
    x, weight = draw(20, 50, 70, dtype)
    packed = pack(weight)
    want = multiply(product(), x, packed, 13, 70)
    x[13:] = np.nan
    got = multiply(product(), x, packed.at[0].set(jnp.nan), 13, 70)
    np.testing.assert_array_equal(got, want)
    assert got.all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inputs", "outputs"), [(768, 200), (301, 64)])
def test_a_row_keeps_its_bits(inputs: int, outputs: int, dtype: str) -> None:
    """Alone, among others, at any place, with any padding; with products that are subnormal too."""
    T = 256
    x, weight = draw(T, inputs, outputs, dtype)
    x[:, ::3] *= x.dtype.type(2.0**-110)
    weight[..., ::5] *= weight.dtype.type(2.0**-30)
    packed = pack(weight)
    together = multiply(native().packed_product, x, packed, T, outputs)
    for count in (1, 2, 5, 6, 7, 13, 24, 25, 64, 255):
        got = multiply(native().packed_product, x, packed, count, outputs)
        np.testing.assert_array_equal(got, together[:count])
        alone = multiply(native().packed_product, x[-count:], packed, count, outputs)
        np.testing.assert_array_equal(alone, together[-count:])
    more = multiply(native().packed_product, np.pad(x, ((0, 99), (0, 0))), packed, T, outputs)
    np.testing.assert_array_equal(more, together)


@pytest.mark.parametrize("num_tokens", [-1, 0, 1000])
def test_any_number_of_tokens_is_a_number_of_rows(num_tokens: int) -> None:
    x, weight = draw(5, 8, 8, "float32")
    got = multiply(native().packed_product, x, pack(weight), num_tokens, 8)
    assert got.all()
    assert len(got) == (5 if num_tokens > 5 else 0)


@pytest.mark.parametrize("layer", [-1, 2])
def test_a_layer_that_does_not_exist_is_refused(layer: int) -> None:
    x, weight = draw(5, 8, 8, "float32")
    # By the call, or where its result is waited for.
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="layer does not exist"):
        multiply(native().packed_product, x, pack(weight), 5, 8, layer)


def test_operands_of_two_types_are_refused() -> None:
    x, weight = draw(5, 8, 8, "float32")
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        multiply(native().packed_product, x, pack(weight.astype(jnp.bfloat16)), 5, 8)


def test_a_residual_of_another_type_is_refused() -> None:
    x, weight = draw(5, 8, 8, "float32")
    residual = jnp.zeros((5, 8), "bfloat16")
    with pytest.raises(ValueError, match=r"\['float32', 'bfloat16'\]"):
        multiply(native().packed_product, x, pack(weight), 5, 8, residual=residual)


def test_a_result_that_is_neither_float32_nor_of_the_operands_type_is_refused() -> None:
    x, weight = draw(5, 8, 8, "float32")
    with pytest.raises(ValueError, match=r"\['float32', 'float32', 'bfloat16'\]"):
        multiply(native().packed_product, x, pack(weight), 5, 8, dtype="bfloat16")


def test_the_stack_is_not_copied() -> None:
    """A scan over the layers allocates nothing of the weights' size."""
    x, weight = draw(8, 256, 256, "bfloat16", layers=6)
    packed = pack(weight)

    def walk(x: jax.Array, packed: jax.Array) -> jax.Array:
        def body(x: jax.Array, layer: jax.Array) -> tuple[jax.Array, None]:
            y = native().packed_product(x, packed, layer, jnp.int32(8), out_features=256)
            return y.astype(x.dtype), None

        return jax.lax.scan(body, x, jnp.arange(6))[0]

    memory = jax.jit(walk).lower(x, packed).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < weight[0].nbytes
