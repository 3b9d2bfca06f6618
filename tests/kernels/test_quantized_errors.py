"""What products with weights of few bits refuse."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.quantized_product import (
    GroupedCodes,
)
from tests.support.coded_weights import draw, draw_inputs
from tests.support.native import native

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
