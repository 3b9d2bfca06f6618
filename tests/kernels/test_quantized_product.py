"""Products with weights of 4 and 8 bits against float64, and against themselves to the bit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.cpu import build
from pallas_kernels.cpu.build import Recipe
from pallas_kernels.cpu.library import Library
from pallas_kernels.cpu.parts import PARTS, part_of_codes
from pallas_kernels.packed_product import PANEL
from pallas_kernels.quantized_product import (
    quantized_rows,
    unit_inputs,
    unpack_codes,
)
from tests.support.coded_weights import (
    ALL_INPUTS,
    LAYER,
    TOLERANCE,
    Product,
    draw,
    draw_inputs,
    multiply,
    native_product,
    ref,
    rounded,
)
from tests.support.native import native


@pytest.mark.parametrize("bits", [2, 4, 5, 6, 8])
def test_packing_keeps_every_code_in_its_place(bits: int) -> None:
    weight = draw(bits, 64, 75, 130, kind="zeros")
    codes, scales, zeros, *_ = weight.packed
    assert codes.shape == (2, 3, -(-75 // unit_inputs(bits)) * unit_inputs(bits) * bits // 32, PANEL, 4)
    unpacked = np.asarray(unpack_codes(codes, bits=bits)).reshape(2, 3 * PANEL, -1)
    np.testing.assert_array_equal(unpacked[:, :130, :75], weight.codes)
    assert not unpacked[:, 130:].any()
    assert not unpacked[:, :, 75:].any()
    assert weight.zeros is not None
    for o, g in np.ndindex(130, 2):
        np.testing.assert_array_equal(scales[:, o // PANEL, g, o % PANEL], weight.scales[:, o, g])
        np.testing.assert_array_equal(zeros[:, o // PANEL, g, o % PANEL], weight.zeros[:, o, g])


ROWS = [
    (4, 40, "zeros", "bfloat16"),
    (8, 40, "", "bfloat16"),
    (5, 32, "minimums", "float16"),
    (6, 16, "blocks", "float16"),
    (2, 16, "blocks, minimums", "float16"),
]


@pytest.mark.parametrize(("bits", "group", "kind", "dtype"), ROWS)
def test_rows_are_those_of_the_table(bits: int, group: int, kind: str, dtype: str) -> None:
    weight = draw(bits, group, 300, 130, kind=kind, dtype=dtype)
    ids = jnp.array([0, 129, 63, 64, 0])
    got = np.asarray(quantized_rows(weight.packed.only(LAYER), ids, bits=bits, group=weight.group))
    np.testing.assert_allclose(got[:, :300], weight.exact[ids].astype(np.float32), rtol=1e-6, atol=1e-9)


CASES = [
    # bits, group, tokens, inputs, outputs, what is beside the scales, dtypes of scales and x
    (8, ALL_INPUTS, 1, 1, 1, "", "bfloat16", "bfloat16"),
    (8, ALL_INPUTS, 6, 301, 64, "", "bfloat16", "bfloat16"),
    (8, ALL_INPUTS, 40, 700, 130, "zeros", "float32", "float32"),
    (8, 128, 7, 301, 65, "zeros", "bfloat16", "float32"),
    (8, 256, 9, 600, 70, "", "float32", "bfloat16"),
    (8, 32, 9, 600, 70, "minimums", "float16", "bfloat16"),
    (4, ALL_INPUTS, 1, 1, 1, "zeros", "bfloat16", "bfloat16"),
    (4, 32, 6, 64, 64, "", "bfloat16", "bfloat16"),
    (4, 64, 7, 301, 65, "zeros", "float32", "float32"),
    (4, 40, 70, 610, 129, "zeros", "bfloat16", "float32"),
    (4, 128, 9, 300, 70, "", "float32", "bfloat16"),
    (4, 8, 3, 100, 70, "", "bfloat16", "float32"),
    (4, 32, 7, 320, 70, "", "float16", "float32"),
    (4, 32, 40, 320, 70, "minimums", "float16", "float32"),
    (4, 32, 5, 600, 70, "blocks, minimums", "float16", "float32"),
    (5, 32, 7, 320, 65, "minimums", "float16", "bfloat16"),
    (5, 32, 40, 600, 70, "blocks, minimums", "float16", "float32"),
    (6, 16, 7, 600, 70, "blocks", "float16", "float32"),
    (6, 16, 40, 512, 130, "blocks, minimums", "float16", "bfloat16"),
    (2, 16, 7, 300, 70, "blocks, minimums", "float16", "float32"),
]


def check_case(
    product: Product,
    bits: int,
    group: int,
    tokens: int,
    inputs: int,
    outputs: int,
    kind: str,
    of_scales: str,
    of_x: str,
) -> None:
    weight = draw(bits, group, inputs, outputs, kind=kind, dtype=of_scales)
    x = draw_inputs(tokens, inputs, of_x)
    got = multiply(product, x, weight)
    np.testing.assert_allclose(got, rounded(x, weight.group) @ weight.exact.T, atol=TOLERANCE, rtol=0)
    assert got.dtype == np.float32


@pytest.mark.parametrize(
    ("product", "case"), [*((ref, CASES[i]) for i in (2, 8, 14, 17)), *((native_product, c) for c in CASES)]
)
def test_matches_float64_of_the_dequantised_weight(
    product: Callable[[], Product], case: tuple[int, int, int, int, int, str, str, str]
) -> None:
    check_case(product(), *case)


def test_rounded_inputs_are_near_the_exact_ones() -> None:
    weight, x = draw(4, 64, 301, 65, kind="zeros"), draw_inputs(7, 301)
    exact = multiply(native_product(), x, weight, exact_inputs=True)
    np.testing.assert_allclose(exact, x @ weight.exact.T, atol=TOLERANCE, rtol=0)
    error = np.abs(multiply(native_product(), x, weight) - exact)
    assert 0 < error.max() < 0.1


@pytest.mark.parametrize("product", [ref, native_product])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_are_rounded_then_added_to_the_residual(dtype: str, product: Callable[[], Product]) -> None:
    weight, x = draw(4, 32, 100, 70, kind="zeros"), draw_inputs(8, 100)
    residual = 3 * draw_inputs(8, 70, dtype)
    sums = multiply(product(), x, weight, 7).astype(residual.dtype)
    np.testing.assert_array_equal(multiply(product(), x, weight, 7, dtype=dtype), sums)
    got = multiply(product(), x, weight, 7, residual=residual, dtype=dtype)
    assert got.dtype == residual.dtype
    np.testing.assert_array_equal(got, residual[:7] + sums)


@pytest.mark.parametrize("product", [ref, native_product])
def test_what_is_not_asked_for_is_not_read(product: Callable[[], Product]) -> None:
    """NaN in the other layer and in the tokens of padding."""
    weight, x = draw(8, 64, 100, 70), draw_inputs(20, 100)
    want = multiply(product(), x, weight, 13)
    x[13:] = np.nan
    weight.scales[1 - LAYER] = np.nan
    np.testing.assert_array_equal(multiply(product(), x, weight, 13), want)
    assert want.all()


@pytest.mark.parametrize("product", [ref, native_product])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_value_that_is_not_finite_spoils_its_own_row_alone(value: float, product: Callable[[], Product]) -> None:
    weight, x = draw(8, ALL_INPUTS, 301, 70, kind="zeros"), draw_inputs(9, 301)
    want = multiply(product(), x, weight)
    x[4, 300] = value
    got = multiply(product(), x, weight)
    assert np.isnan(got[4]).all()
    others = np.arange(9) != 4
    np.testing.assert_array_equal(got[others], want[others])


@pytest.mark.parametrize("product", [ref, native_product])
@pytest.mark.parametrize("size", [0.0, 1e-42, 1e-36, 1e36])
def test_any_size_of_inputs_is_rounded_alike(size: float, product: Callable[[], Product]) -> None:
    weight, x = draw(8, 64, 64, 70, dtype="float32"), draw_inputs(2, 64)
    got = multiply(product(), x * np.float32(size), weight)
    want = size * (rounded(x, 64) @ weight.exact.T)
    np.testing.assert_allclose(got, want, atol=1e-3 * size + 1e-37, rtol=0)


KEPT = [
    *((*shape, kind) for shape in ((8, ALL_INPUTS, 700), (4, 32, 1100), (4, 128, 301)) for kind in ("", "zeros")),
    (4, 32, 600, "blocks, minimums"),
    (5, 32, 352, "minimums"),
    (6, 16, 600, "blocks"),
]


@pytest.mark.parametrize(("bits", "group", "inputs", "kind"), KEPT)
def test_a_row_keeps_its_bits(bits: int, group: int, inputs: int, kind: str) -> None:
    """Alone, among others, at any place, with any padding."""
    T = 130
    weight, x = draw(bits, group, inputs, 200, kind=kind), draw_inputs(T, inputs)
    together = multiply(native_product(), x, weight)
    for count in (1, 2, 3, 4, 5, 6, 7, 13, 64, T - 1):
        got = multiply(native_product(), x, weight, count)
        np.testing.assert_array_equal(got, together[:count])
    for count in (1, 7):
        np.testing.assert_array_equal(multiply(native_product(), x[-count:], weight), together[-count:])


@pytest.mark.parametrize("num_tokens", [-1, 0, 1000])
def test_any_number_of_tokens_is_a_number_of_rows(num_tokens: int) -> None:
    got = multiply(native_product(), draw_inputs(5, 8), draw(8, 8, 8, 8), num_tokens)
    assert got.all()
    assert len(got) == (5 if num_tokens > 5 else 0)


INSTRUCTIONS = {
    "-march=x86-64": "sse2",
    "-march=x86-64-v3": "avx2",
    "-march=x86-64-v3 -mavxvnni": "avx_vnni",
    "-march=x86-64-v4": "avx512bw",
}
"""By the compiler's flags for a kind of x86 processor, what such a processor says that it has."""
RUNNABLE = [flags for flags, needed in INSTRUCTIONS.items() if needed in build.processor()]


@pytest.mark.full  # compiles for instructions that this machine's library leaves out
@pytest.mark.parametrize("flags", RUNNABLE)  # not skipped: CI takes a skipped test for a failure
def test_other_processors_instructions_match_too(flags: str, tmp_path: Path) -> None:
    native()
    found = Recipe.find()
    recipe = replace(found, command=(*found.command[:-1], *flags.split()), digest=f"{found.digest}{flags}")
    files = {}
    for part in {part_of_codes(bits) for bits in (2, 4, 5, 6, 8)}:
        objects = [tmp_path / f"{part}-{number}.o" for number in range(len(PARTS[part].units))]
        for unit, target in zip(PARTS[part].units, objects, strict=True):
            recipe.compile(unit, target)
        files[part] = tmp_path / f"{part}.so", recipe.digest_of(part)
        recipe.link(objects, files[part][0])
    other = Library.open(files)
    for case in CASES:
        check_case(other.quantized_product, *case)
