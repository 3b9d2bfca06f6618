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
    BLOCK,
    GroupedCodes,
    default_zero,
    input_group,
    pack_codes,
    pack_groups,
    quantized_expert_product_ref,
    quantized_product_ref,
    quantized_rows,
    unit_inputs,
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
    zeros: np.ndarray | None = None
    minimums: np.ndarray | None = None
    block_scales: np.ndarray | None = None
    block_minimums: np.ndarray | None = None

    @property
    def how(self) -> dict[str, int]:
        return {"bits": self.bits, "group": self.group, "out_features": self.codes.shape[-2]}

    @property
    def packed(self) -> GroupedCodes:
        of_groups = (self.scales, self.zeros, self.minimums, self.block_scales, self.block_minimums)
        packed = (None if part is None else pack_groups(part) for part in of_groups)
        return GroupedCodes(pack_codes(self.codes, bits=self.bits), *packed)

    @property
    def exact(self) -> np.ndarray:
        """Of the layer, in float64."""
        numbers = self.codes[LAYER].astype(float)
        if self.minimums is not None:
            return numbers * self._of_input(self.scales, self.block_scales) + self._of_input(
                self.minimums, self.block_minimums
            )
        numbers -= default_zero(self.bits) if self.zeros is None else self._of_input(self.zeros)
        return numbers * self._of_input(self.scales, self.block_scales)

    def _of_input(self, values: np.ndarray, of_blocks: np.ndarray | None = None) -> np.ndarray:
        at = np.arange(self.codes.shape[-1])
        found = values[LAYER][..., at // self.group].astype(float)
        return found if of_blocks is None else found * of_blocks[LAYER][..., at // BLOCK].astype(float)


def draw(
    bits: int,
    group: int,
    inputs: int,
    outputs: int,
    *,
    kind: str = "",
    dtype: str = "bfloat16",
    experts: Sequence[int] = (),
) -> Weight:
    """``kind``: what there is beside the scales: zeros, minimums, blocks, or both of the latter."""
    rng = np.random.default_rng(0)
    unit = unit_inputs(bits)
    group = min(group, -(-inputs // unit) * unit)
    outer = (2, *experts, outputs)
    shape, spread = (*outer, -(-inputs // group)), inputs**-0.5 * 4
    codes = rng.integers(0, 1 << bits, (*outer, inputs), dtype=np.uint8)
    scales = rng.normal(size=shape) * spread / (1 << bits)
    found = Weight(bits, group, codes, scales.astype(jnp.dtype(dtype)))
    if "zeros" in kind:
        found = replace(found, zeros=rng.integers(0, 1 << bits, shape, dtype=np.uint8))
    if "minimums" in kind:
        found = replace(found, minimums=(rng.normal(size=shape) * spread).astype(jnp.dtype(dtype)))
    if "blocks" in kind:
        of_blocks = (*outer, -(-inputs // BLOCK))
        drawn = (rng.uniform(0.5, 1.5, of_blocks) * spread / (1 << bits) / 64).astype(np.float16)
        found = replace(found, scales=rng.integers(-128, 128, shape, dtype=np.int8), block_scales=drawn)
        if "minimums" in kind:
            minimums = rng.integers(0, 64, shape, dtype=np.int8)
            found = replace(found, minimums=minimums, block_minimums=-drawn * np.float16(1 << bits - 1))
    return found


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
    result = np.asarray(program_of(product)(x, weight.packed, np.int32(layer), rows, **weight.how, **more))
    return result[: max(rows.flat[-1], 0)]


def ref() -> Product:
    return quantized_product_ref


def native_product() -> Product:
    return native().quantized_product


def ref_experts() -> Product:
    return quantized_expert_product_ref


def native_experts() -> Product:
    return native().quantized_expert_product


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
    *((bits, 40, kind, "bfloat16") for bits in (4, 8) for kind in ("", "zeros")),
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


COUNTS = {"uneven": (9, 0, 1, 24, 2), "all to one": (0, 0, 40, 0, 0), "none": (0, 0, 0, 0, 0)}
"""Rows of each of five experts, of 40."""


def starts_of(counts: Sequence[int]) -> list[int]:
    return np.cumsum([0, *counts]).tolist()


@pytest.mark.parametrize("product", [ref_experts, native_experts])
@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
def test_experts_match_float64(counts: Sequence[int], product: Callable[[], Product]) -> None:
    weight, x = draw(4, 32, 100, 70, kind="zeros", experts=(5,)), draw_inputs(40, 100)
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
    "neither 2, 4, 5, 6 nor 8 bits": lambda given: given.update(bits=3),
    "not of the scales' shape and type": lambda given: given.update(minimums=given["scales"][..., :2]),
    "both zero points and minimums": lambda given: given.update(
        minimums=given["scales"], zeros=jnp.zeros(given["scales"].shape, "uint8")
    ),
    "need scales that are integers": lambda given: given.update(block_scales=given["scales"].astype("float16")),
    "nor integers of 8 bits": lambda given: given.update(scales=given["scales"].astype("uint8")),
    "scales of blocks do not fit": lambda given: given.update(
        scales=given["scales"].astype("int8"), block_scales=given["scales"].astype("float16")
    ),
    "x does not fit": lambda given: given.update(x=given["x"][:, :60]),
    "residual is not of the result's shape": lambda given: given.update(residual=jnp.zeros((5, 9))),
    r"float32 or bfloat16, not \['float16'\]": lambda given: given.update(x=given["x"].astype("float16")),
    r"not \['float32', 'bfloat16'\]": lambda given: given.update(residual=jnp.zeros((5, 8), "bfloat16")),
}
"""What is said, and what is wrong in it."""


@pytest.mark.parametrize("message", WRONG)
def test_what_does_not_fit_is_refused(message: str) -> None:
    weight = draw(8, 64, 100, 8)
    given: dict[str, Any] = {"x": jnp.asarray(draw_inputs(5, 100)), **weight.packed._asdict()}
    given |= {"layer": jnp.int32(0), "num_tokens": jnp.int32(5), "bits": 8, "group": 64, "out_features": 8}
    WRONG[message](given)
    # By the call, or where its result is waited for.
    parts = GroupedCodes(**{name: given.pop(name) for name in GroupedCodes._fields})
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=message):
        jax.block_until_ready(native().quantized_product(weight=parts, **given))


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
