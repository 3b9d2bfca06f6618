"""Products with weights of 4 and 8 bits against float64, and against themselves to the bit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.cpu import build, library
from pallas_kernels.cpu.build import Recipe
from pallas_kernels.cpu.library import Library
from pallas_kernels.packed_product import PANEL
from pallas_kernels.quantized_product import (
    default_zero,
    input_group,
    pack_codes,
    pack_groups,
    quantized_expert_product_ref,
    quantized_product_ref,
    quantized_rows,
    unpack_codes,
)
from tests.support.native import native

TOLERANCE = 2e-5
"""Of the float32 sums: in a group they are exact, and the outputs have a variance of about 1."""
LAYER = 1
ALL_INPUTS = 10**6
Product = Callable[..., jax.Array]


@dataclass(frozen=True)
class Weight:
    """Layers of a weight, [2, *experts, outputs, inputs]."""

    bits: int
    group: int
    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None

    @property
    def how(self) -> dict[str, int]:
        return {"bits": self.bits, "group": self.group, "out_features": self.codes.shape[-2]}

    @property
    def packed(self) -> tuple[Any, Any, Any]:
        zeros = None if self.zeros is None else pack_groups(self.zeros)
        return pack_codes(self.codes, bits=self.bits), pack_groups(self.scales), zeros

    @property
    def exact(self) -> np.ndarray:
        """Of the layer, in float64."""
        group = np.arange(self.codes.shape[-1]) // self.group
        zeros = default_zero(self.bits) if self.zeros is None else self.zeros[LAYER][..., group].astype(float)
        return (self.codes[LAYER].astype(float) - zeros) * self.scales[LAYER][..., group].astype(float)


def draw(
    bits: int,
    group: int,
    inputs: int,
    outputs: int,
    *,
    zeros: bool = False,
    dtype: str = "bfloat16",
    experts: Sequence[int] = (),
) -> Weight:
    rng = np.random.default_rng(0)
    unit = 32 // bits
    group = min(group, -(-inputs // unit) * unit)
    shape = (2, *experts, outputs, -(-inputs // group))
    codes = rng.integers(0, 1 << bits, (*shape[:-1], inputs), dtype=np.uint8)
    scales = rng.normal(size=shape) * inputs**-0.5 * 4 / (1 << bits)
    drawn = rng.integers(0, 1 << bits, shape, dtype=np.uint8) if zeros else None
    return Weight(bits, group, codes, scales.astype(jnp.dtype(dtype)), drawn)


def draw_inputs(tokens: int, inputs: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(1).normal(size=(tokens, inputs)).astype(jnp.dtype(dtype))


def rounded(x: np.ndarray, group: int) -> np.ndarray:
    """The nearest of 255 multiples in each group of inputs; which one is nearest, float32 decides."""
    x, near = x.astype(np.float32), np.zeros(x.shape)
    size = input_group(group)
    for first in range(0, x.shape[1], size):
        part = x[:, first : first + size]
        largest = np.abs(part).max(axis=1, keepdims=True)
        units = np.round(part * (np.float32(127) / largest))
        near[:, first : first + size] = units * (largest.astype(float) / 127)
    return near


@cache
def program_of(product: Product) -> Product:
    return jax.jit(product, static_argnames=("bits", "group", "out_features", "dtype", "exact_inputs"))


def multiply(product: Product, x: np.ndarray, weight: Weight, rows: Any = None, layer: int = LAYER, **more: Any) -> Any:
    """The rows that hold something. ``rows``: the number of tokens or the experts' starts."""
    rows = np.int32(len(x)) if rows is None else np.asarray(rows, np.int32)
    result = np.asarray(program_of(product)(x, *weight.packed, np.int32(layer), rows, **weight.how, **more))
    return result[: max(rows.flat[-1], 0)]


def ref() -> Product:
    return quantized_product_ref


def native_product() -> Product:
    return native().quantized_product


def ref_experts() -> Product:
    return quantized_expert_product_ref


def native_experts() -> Product:
    return native().quantized_expert_product


@pytest.mark.parametrize("bits", [4, 8])
def test_packing_keeps_every_code_in_its_place(bits: int) -> None:
    weight = draw(bits, 40, 75, 130, zeros=True)
    codes, scales, zeros = weight.packed
    assert codes.shape == (2, 3, -(-75 * bits // 32), PANEL, 4)
    unpacked = np.asarray(unpack_codes(codes, bits=bits)).reshape(2, 3 * PANEL, -1)
    np.testing.assert_array_equal(unpacked[:, :130, :75], weight.codes)
    assert not unpacked[:, 130:].any()
    assert not unpacked[:, :, 75:].any()
    assert weight.zeros is not None
    for o, g in np.ndindex(130, 2):
        np.testing.assert_array_equal(scales[:, o // PANEL, g, o % PANEL], weight.scales[:, o, g])
        np.testing.assert_array_equal(zeros[:, o // PANEL, g, o % PANEL], weight.zeros[:, o, g])


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_rows_are_those_of_the_table(bits: int, zeros: bool) -> None:
    weight = draw(bits, 40, 75, 130, zeros=zeros)
    ids = jnp.array([0, 129, 63, 64, 0])
    codes, scales, drawn = weight.packed
    of_table = codes[LAYER], scales[LAYER], drawn[LAYER] if zeros else None
    got = np.asarray(quantized_rows(*of_table, ids, bits=bits, group=weight.group))
    np.testing.assert_array_equal(got[:, :75], weight.exact[ids].astype(np.float32))


CASES = [
    # bits, group, tokens, inputs, outputs, zeros, dtypes of scales and x
    (8, ALL_INPUTS, 1, 1, 1, False, "bfloat16", "bfloat16"),
    (8, ALL_INPUTS, 6, 301, 64, False, "bfloat16", "bfloat16"),
    (8, ALL_INPUTS, 40, 700, 130, True, "float32", "float32"),
    (8, 128, 7, 301, 65, True, "bfloat16", "float32"),
    (8, 256, 9, 600, 70, False, "float32", "bfloat16"),
    (4, ALL_INPUTS, 1, 1, 1, True, "bfloat16", "bfloat16"),
    (4, 32, 6, 64, 64, False, "bfloat16", "bfloat16"),
    (4, 64, 7, 301, 65, True, "float32", "float32"),
    (4, 40, 70, 610, 129, True, "bfloat16", "float32"),
    (4, 128, 9, 300, 70, False, "float32", "bfloat16"),
    (4, 8, 3, 100, 70, False, "bfloat16", "float32"),
]


def check_case(
    product: Product,
    bits: int,
    group: int,
    tokens: int,
    inputs: int,
    outputs: int,
    zeros: bool,
    of_scales: str,
    of_x: str,
) -> None:
    weight = draw(bits, group, inputs, outputs, zeros=zeros, dtype=of_scales)
    x = draw_inputs(tokens, inputs, of_x)
    got = multiply(product, x, weight)
    np.testing.assert_allclose(got, rounded(x, weight.group) @ weight.exact.T, atol=TOLERANCE, rtol=0)
    assert got.dtype == np.float32


@pytest.mark.parametrize(("product", "case"), [(ref, CASES[2]), (ref, CASES[7]), *((native_product, c) for c in CASES)])
def test_matches_float64_of_the_dequantised_weight(
    product: Callable[[], Product], case: tuple[int, int, int, int, int, bool, str, str]
) -> None:
    check_case(product(), *case)


def test_rounded_inputs_are_near_the_exact_ones() -> None:
    weight, x = draw(4, 64, 301, 65, zeros=True), draw_inputs(7, 301)
    exact = multiply(native_product(), x, weight, exact_inputs=True)
    np.testing.assert_allclose(exact, x @ weight.exact.T, atol=TOLERANCE, rtol=0)
    error = np.abs(multiply(native_product(), x, weight) - exact)
    assert 0 < error.max() < 0.1


@pytest.mark.parametrize("product", [ref, native_product])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_are_rounded_then_added_to_the_residual(dtype: str, product: Callable[[], Product]) -> None:
    weight, x = draw(4, 32, 100, 70, zeros=True), draw_inputs(8, 100)
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
    weight, x = draw(8, ALL_INPUTS, 301, 70, zeros=True), draw_inputs(9, 301)
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


@pytest.mark.parametrize(("bits", "group", "inputs"), [(8, ALL_INPUTS, 700), (4, 32, 1100), (4, 128, 301)])
@pytest.mark.parametrize("zeros", [False, True])
def test_a_row_keeps_its_bits(bits: int, group: int, inputs: int, zeros: bool) -> None:
    """Alone, among others, at any place, with any padding."""
    T = 130
    weight, x = draw(bits, group, inputs, 200, zeros=zeros), draw_inputs(T, inputs)
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


COUNTS = {"uneven": (9, 0, 1, 24, 2), "all to one": (0, 0, 40, 0, 0), "none": (0, 0, 0, 0, 0)}
"""Rows of each of five experts, of 40."""


def starts_of(counts: Sequence[int]) -> list[int]:
    return np.cumsum([0, *counts]).tolist()


@pytest.mark.parametrize("product", [ref_experts, native_experts])
@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
def test_experts_match_float64(counts: Sequence[int], product: Callable[[], Product]) -> None:
    weight, x = draw(4, 32, 100, 70, zeros=True, experts=(5,)), draw_inputs(40, 100)
    want = np.zeros((sum(counts), 70))
    for expert, (first, end) in enumerate(pairwise(starts_of(counts))):
        want[first:end] = rounded(x[first:end], 32) @ weight.exact[expert].T
    x[sum(counts) :] = np.nan  # rows of no expert are not read
    got = multiply(product(), x, weight, starts_of(counts))
    np.testing.assert_allclose(got, want, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("bits", [4, 8])
def test_experts_rows_have_the_bits_of_a_product(bits: int) -> None:
    weight, x = draw(bits, 64, 301, 129, experts=(5,)), draw_inputs(40, 301, "bfloat16")
    got = multiply(native_experts(), x, weight, starts_of(COUNTS["uneven"]), dtype="bfloat16")
    for expert, (first, end) in enumerate(pairwise(starts_of(COUNTS["uneven"]))):
        own = replace(weight, codes=weight.codes[:, expert], scales=weight.scales[:, expert])
        want = multiply(native_product(), x, own, dtype="bfloat16")
        np.testing.assert_array_equal(got[first:end], want[first:end])


Change = Callable[[dict[str, Any]], Any]
WRONG: dict[str, Change] = {
    "the layer does not exist": lambda given: given.update(layer=jnp.int32(2)),
    "the codes are not bytes": lambda given: given.update(codes=given["codes"][..., :2]),
    "not one scale for each group": lambda given: given.update(group=32),
    "neither a multiple of 8 inputs": lambda given: given.update(group=20),
    "neither 4 nor 8 bits": lambda given: given.update(bits=2),
    "x does not fit": lambda given: given.update(x=given["x"][:, :60]),
    "residual is not of the result's shape": lambda given: given.update(residual=jnp.zeros((5, 9))),
    r"float32 or bfloat16, not \['float16'\]": lambda given: given.update(x=given["x"].astype("float16")),
    r"not \['float32', 'bfloat16'\]": lambda given: given.update(residual=jnp.zeros((5, 8), "bfloat16")),
}
"""What is said, and what is wrong in it."""


@pytest.mark.parametrize("message", WRONG)
def test_what_does_not_fit_is_refused(message: str) -> None:
    weight = draw(8, 64, 100, 8)
    codes, scales, zeros = weight.packed
    given: dict[str, Any] = {"x": jnp.asarray(draw_inputs(5, 100)), "codes": codes, "scales": scales, "zeros": zeros}
    given |= {"layer": jnp.int32(0), "num_tokens": jnp.int32(5), "bits": 8, "group": 64, "out_features": 8}
    WRONG[message](given)
    # By the call, or where its result is waited for.
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=message):
        jax.block_until_ready(native().quantized_product(**given))


def test_starts_that_lead_past_an_array_are_refused() -> None:
    weight = draw(8, 8, 8, 8, experts=(2,))
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="do not ascend"):
        multiply(native_experts(), draw_inputs(5, 8), weight, [0, 4, 3])


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
def test_other_processors_instructions_match_too(flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native()
    monkeypatch.setattr(build, "UNITS", ("quantized.cc",))
    monkeypatch.setattr(library, "HANDLERS", [name for name in library.HANDLERS if name.startswith("Quantized")])
    recipe = Recipe.find()
    path = tmp_path / "other.so"
    replace(recipe, command=(*recipe.command[:-1], *flags.split())).compile(path)
    other = Library.open(path, f"{recipe.digest}{flags}")
    for case in CASES:
        check_case(other.quantized_product, *case)
