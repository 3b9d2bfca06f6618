"""Random weights as codes, for the proof of their products."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgen.core.quantization import WeightFormat, numbers_of
from pallas_kernels.proof import Weights, rounded
from pallas_kernels.quantized_product import GroupedCodes


def coded_weights(
    form: WeightFormat,
    outputs: int,
    inputs: int,
    pack_codes: Callable[..., Any],
    pack_groups: Callable[..., Any],
) -> Weights:
    """Return a maker of weights in a format without zero points, and of the numbers that they mean.

    With scales of groups the numbers are rounded to bfloat16, as products on GPUs do.
    """

    def make(used: np.ndarray) -> tuple[GroupedCodes, Callable[[int, np.ndarray], np.ndarray]]:
        rng = np.random.default_rng(2)
        size = 1, len(used), outputs, inputs
        each = np.arange(1 << form.bits, dtype=np.uint8)
        each = each[np.isfinite(_numbers(each, form))]
        codes = each[rng.integers(len(each), size=size, dtype=np.uint8)]
        scales = (
            rng.normal(size=(*size[:3], form.num_groups(inputs))) * inputs**-0.5 / np.abs(_numbers(each, form)).max()
        )
        scales[:, ~used] = np.nan
        factors = jnp.asarray(scales, form.scale_dtype)
        weight = GroupedCodes(pack_codes(jnp.asarray(codes), bits=form.bits), pack_groups(factors))

        def numbers(expert: int, columns: np.ndarray) -> np.ndarray:
            values, of_groups = (
                _numbers(codes[0, expert, columns], form),
                rounded(factors[0, expert, columns], "float32"),
            )
            if form.group is None:
                return values * of_groups
            by_input = np.repeat(rounded(of_groups, "bfloat16"), form.group, axis=1)[:, :inputs]
            return rounded(values * by_input, "bfloat16")

        return weight, numbers

    return make


def _numbers(codes: np.ndarray, form: WeightFormat) -> np.ndarray:
    """Return the numbers of codes before their scales, in float64."""
    return numbers_of(codes, form).astype(np.float64) - (0 if form.floats else form.zero)


def dense_weights(
    form: WeightFormat,
    outputs: int,
    inputs: int,
    pack_codes: Callable[..., Any],
    pack_groups: Callable[..., Any],
) -> Weights:
    """Return a maker of a stack of weights [outputs, inputs], as ``coded_weights`` makes those of experts."""
    of_experts = coded_weights(form, outputs, inputs, pack_codes, pack_groups)

    def make(used: np.ndarray) -> tuple[GroupedCodes, Callable[[int, np.ndarray], np.ndarray]]:
        weight, numbers = of_experts(used)
        return weight.only(0), numbers

    return make
