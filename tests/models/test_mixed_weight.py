"""Layers in several formats: each multiplies by its own numbers, in a program that does not grow with the layers."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgen.core.mixed_weight import MixedFormat, MixedWeight, Part, PartWeight
from jaxgen.core.plain_weight import PlainFormat, PlainWeight
from jaxgen.core.quantization import WeightFormat
from jaxgen.kernels.choice import REFERENCE_GPU
from jaxgen.models.mixed_weight import MixedQuantizedWeight
from jaxgen.models.packed_weight import PackedWeight, packing
from jaxgen.models.quantized_weight import Codes, QuantizedWeight
from tests.support.quantized import random_parts

INT8, INT4 = WeightFormat(8, 32, "float32"), WeightFormat(4, 32, "float32")
FIVE = jnp.int32(5)
PLAIN = PlainFormat("float32")
LAYERS = [
    *((Part(INT4, 40), Part(INT8, 24)), (Part(INT4, 64),), (Part(INT4, 40), Part(INT8, 24)), (Part(INT8, 64),)),
    *((Part(PLAIN, 64),), (Part(INT4, 40), Part(PLAIN, 24))),
]
PLACES = [(0, 0), (1, 0), (0, 1), (2, 0), (3, 0), (4, 0)]
"""Of the layers: the kind, and the place among those of the kind."""


def drawn(layers: list[tuple[Part, ...]], *experts: int) -> MixedWeight:
    form = MixedFormat.of_layers(layers)
    weight = random_parts(form, (len(layers), *experts, 64, 96), np.random.default_rng(0))
    assert isinstance(weight, MixedWeight)
    return weight


def numbers(weight: MixedWeight, layer: int, *expert: int) -> np.ndarray:
    kind, place = PLACES[layer]
    return np.concatenate([part.dequantized((place, *expert)) for part in weight.kinds[kind]])


def packed(weight: MixedWeight) -> MixedQuantizedWeight:
    """By XLA's product of GPUs, whose activations stay, on stacks of layers."""
    kernel = REFERENCE_GPU.quantized
    assert kernel is not None

    def packed_part(part: PartWeight) -> QuantizedWeight | PackedWeight:
        if isinstance(part, PlainWeight):
            return PackedWeight.pack(jnp.asarray(part.numbers), packing(REFERENCE_GPU))
        return QuantizedWeight.pack(part.format, Codes.of(part), kernel, "float32")

    kinds = tuple(tuple(map(packed_part, kind)) for kind in weight.kinds)
    return MixedQuantizedWeight(kinds, jnp.int32(0), weight.format.layers)


def test_each_layer_multiplies_by_its_own_numbers() -> None:
    weight, rng = drawn(LAYERS), np.random.default_rng(1)
    placed = packed(weight)
    assert weight.format.layers == (0, 1, 0, 2, 3, 4)
    x, residual = (rng.normal(size=(5, size)).astype(np.float32) for size in (96, 64))
    product = jax.jit(lambda layer: placed.at(layer).product(jnp.asarray(x), FIVE, jnp.asarray(residual)))
    for layer in range(len(LAYERS)):
        np.testing.assert_array_equal(weight.dequantized((layer,)), numbers(weight, layer))
        wanted = x @ numbers(weight, layer).T + residual
        np.testing.assert_allclose(product(layer), wanted, atol=1e-4)
        alone = placed.alone(layer).product(jnp.asarray(x), FIVE, jnp.asarray(residual))
        np.testing.assert_allclose(alone, wanted, atol=1e-4)


@pytest.mark.parametrize("layer", [2, 5])
def test_experts_multiply_by_their_layer_s_numbers(layer: int) -> None:
    weight, rng, starts = drawn(LAYERS, 3), np.random.default_rng(1), [0, 4, 4, 9]
    x = rng.normal(size=(9, 96)).astype(np.float32)
    found = packed(weight).at(jnp.int32(layer)).expert_product(jnp.asarray(x), jnp.asarray(starts, jnp.int32))
    for expert, (start, end) in enumerate(pairwise(starts)):
        np.testing.assert_allclose(found[start:end], x[start:end] @ numbers(weight, layer, expert).T, atol=1e-4)


def test_a_program_grows_with_the_kinds_and_not_with_the_layers() -> None:
    x, sizes = jnp.zeros((5, 96)), []
    for layers in (LAYERS, LAYERS * 3):
        placed = packed(drawn(layers))
        sizes.append(len(jax.jit(lambda layer: placed.at(layer).product(x, FIVE)).lower(1).as_text().splitlines()))  # noqa: B023
    assert sizes[0] == sizes[1]


def test_outputs_that_lie_in_two_parts_have_no_format() -> None:
    form = drawn(LAYERS).format
    assert form.at((0, slice(40, 64))) == INT8
    with pytest.raises(AssertionError, match="a source has one format"):
        form.at((0, slice(32, 64)))
