"""The products that python -m scripts.gpu times are all in the program that it compiles."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from scripts.gpu.roofline.bill import PRODUCTS, bill_of
from scripts.gpu.roofline.pallas import Load
from scripts.gpu.rows.products import _chain
from tests.aot import cases
from tests.aot.target import Target, compile_for

T, I, O = 64, 4096, 4096  # noqa: E741
"""The smallest weights of a layer, which XLA would soonest join."""
COUNT = 5


@pytest.mark.only(cases.HOPPER)
def test_no_products_are_joined_or_left_out(target: Target) -> None:
    xs, weights = ([jax.ShapeDtypeStruct((size, I), jnp.bfloat16)] * count for size, count in ((T, 2), (O, 3)))
    compiled = compile_for(target, partial(_chain, COUNT), (xs, weights), read=False)
    found = [one for one in bill_of(compiled.hlo, Load((), 0)) if one.kind == PRODUCTS]
    assert [one.flops for one in found] == COUNT * [2 * T * I * O]
