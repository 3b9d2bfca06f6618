"""Products of experts with weights of 4 and 8 bits against float64, and against plain products to the bit."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import jax
import numpy as np
import pytest

from tests.support.coded_weights import (
    TOLERANCE,
    Product,
    draw,
    draw_inputs,
    multiply,
    native_experts,
    native_product,
    ref_experts,
    rounded,
)

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


def test_starts_that_lead_past_an_array_are_refused() -> None:
    weight = draw(8, 8, 8, 8, experts=(2,))
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="do not ascend"):
        multiply(native_experts(), draw_inputs(5, 8), weight, [0, 4, 3])
