"""Random models whose matrices are codes of few bits, and kernels that multiply codes by plain jnp."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxgen.core.mixed_weight import AnyFormat, AnyWeight, MixedFormat, MixedWeight, Part, PartFormat, PartWeight
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.plain_weight import PlainFormat, PlainWeight
from jaxgen.core.quantization import FLOATS, GroupedWeight, WeightFormat, packed
from jaxgen.kernels.choice import REFERENCE
from jaxgen.kernels.kernels import QuantizedProduct
from jaxgen.models.model import abstract_params
from pallas_kernels.quantized_product import (
    pack_codes,
    pack_groups,
    quantized_expert_product_ref,
    quantized_product_ref,
    quantized_rows,
)

TWINS = replace(
    REFERENCE,
    quantized=QuantizedProduct(
        pack_codes, pack_groups, quantized_product_ref, quantized_rows, quantized_expert_product_ref
    ),
)
INT8 = WeightFormat(8, None)
INT4 = WeightFormat(4, 32, "float32", zeros=True)
ORDERED = WeightFormat(4, 32, ordered=True)
Q4_0 = WeightFormat(4, 32, "float16")
Q4_1 = WeightFormat(4, 32, "float16", minimums=True)
Q4_K = WeightFormat(4, 32, "float16", minimums=True, blocks=True)
Q5_K = replace(Q4_K, bits=5)
Q6_K = WeightFormat(6, 16, "float16", blocks=True)
FP8 = WeightFormat(8, None, floats=True)
FP4 = WeightFormat(4, 16, "float32", floats=True)


def quantized[Config: ModelConfig](model: Config, weight_format: WeightFormat) -> Config:
    """Return the model with this format for its matrices; ``params_of`` draws them."""
    paths = [path for path in abstract_params(model) if path.endswith(".weight") and "norm" not in path]
    return replace(model, weight_formats=tuple((path, weight_format) for path in paths))


def mixed[Config: ModelConfig](model: Config) -> Config:
    """Return the model as a file of Q4_K_M: values, and down projections of the first layer of two, have 6 bits.

    The queries of the second layer, and the output projections of the first, are numbers.
    """
    plain = PlainFormat(model.dtype)
    shapes = {path: leaf.shape for path, leaf in abstract_params(model).items()}
    found: dict[str, AnyFormat] = {}
    for path, form in quantized(model, Q4_K).weight_formats:
        outputs, kv = shapes[path][-2], model.num_kv_heads * model.head_dim
        whole, fine = Part(Q4_K, outputs), Part(Q6_K, outputs)
        several: dict[str, list[tuple[Part, ...]]] = {
            "layers.attn.qkv.weight": [
                (Part(Q4_K, outputs - kv), Part(Q6_K, kv)),
                (Part(plain, outputs - 2 * kv), Part(Q4_K, 2 * kv)),
            ],
            "layers.attn.out.weight": [(Part(plain, outputs),), (whole,)],
            "layers.mlp.down.weight": [(fine,), (whole,)],
        }
        found[path] = MixedFormat.of_layers(several[path] * (model.num_layers // 2)) if path in several else form
    return replace(model, weight_formats=tuple(found.items()))


def random_parts(weight_format: AnyFormat, shape: tuple[int, ...], rng: np.random.Generator) -> AnyWeight:
    """Return a ``random_weight``, or one of a mixed format."""
    if not isinstance(weight_format, MixedFormat):
        return random_weight(weight_format, shape, rng)
    kinds = weight_format.shapes(shape)
    return MixedWeight(weight_format, tuple(tuple(_random_part(*part, rng) for part in kind) for kind in kinds))


def _random_part(part_format: PartFormat, shape: tuple[int, ...], rng: np.random.Generator) -> PartWeight:
    if isinstance(part_format, PlainFormat):
        return PlainWeight(part_format, rng.normal(scale=0.12, size=shape).astype(jnp.dtype(part_format.dtype)))
    return random_weight(part_format, shape, rng)


def random_weight(weight_format: WeightFormat, shape: tuple[int, ...], rng: np.random.Generator) -> GroupedWeight:
    """Return a weight [*stack, out, in] whose numbers spread as ``params_of`` draws them."""
    *stack, size_out, size_in = shape
    groups = 1 if weight_format.group is None else -(-size_in // weight_format.group)
    zero, levels = 1 << (weight_format.bits - 1), 1 << weight_format.bits
    numbers = np.clip(np.round(rng.normal(scale=levels / 6, size=shape)) + zero, 0, levels - 1).astype(np.uint8)
    if weight_format.floats:  # of all codes
        most = float(ml_dtypes.finfo(FLOATS[weight_format.bits]).max)  # type: ignore[no-untyped-call]
        levels = int(8 * most)
        numbers = rng.uniform(-most, most, size=shape).astype(FLOATS[weight_format.bits]).view(np.uint8)
    codes = packed(numbers, weight_format)
    scales = rng.uniform(0.5, 1.5, size=(*stack, size_out, groups)) * 0.12 * 6 / levels
    zeros = rng.integers(zero - 1, zero + 2, size=scales.shape).astype(np.uint8) if weight_format.zeros else None
    order = None
    if weight_format.ordered:
        order = rng.permuted(np.broadcast_to(np.arange(size_in, dtype=np.int32), (*stack, size_in)), axis=-1)
    weight = GroupedWeight(weight_format, codes, scales.astype(jnp.dtype(weight_format.scale_dtype)), zeros, order)
    if weight_format.blocks:
        of_blocks, dtype = weight_format.arrays(shape)["block_scales"]
        drawn = rng.uniform(0.5, 1.5, size=of_blocks) * 0.12 * 6 / levels / 32
        whole = rng.integers(16, 64, size=scales.shape).astype(np.int8)
        weight = replace(weight, scales=whole, block_scales=drawn.astype(dtype))
    if weight_format.minimums:
        lowest: Any = (
            weight.scales if weight_format.blocks else (-zero * weight.scales).astype(weight_format.scale_dtype)
        )
        whole_block = None if weight.block_scales is None else (-zero * weight.block_scales).astype(np.float16)
        weight = replace(weight, minimums=lowest, block_minimums=whole_block)
    return weight


def numbers(params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters with float32 numbers in place of codes."""
    return {
        path: jnp.asarray(value.dequantized()) if isinstance(value, AnyWeight) else value
        for path, value in params.items()
    }
