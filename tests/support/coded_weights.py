"""Weights of 2 to 8 bits with random codes, their numbers in float64, and products with them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.quantized_product import (
    BLOCK,
    GroupedCodes,
    default_zero,
    input_group,
    pack_codes,
    pack_groups,
    quantized_expert_product_ref,
    quantized_product_ref,
    unit_inputs,
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
