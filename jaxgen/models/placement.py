"""Place parameters in memory as a set of kernels reads them.

Matrices are packed, or each layer's matrix is separate, or experts' matrices are a stack that is not sliced. Quantized
weights are packed codes, or numbers where no kernel multiplies codes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxgen.core.mixed_weight import AnyFormat, AnyWeight, MixedFormat, PartFormat, PartWeight, place_of
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.operations import NORMS
from jaxgen.core.plain_weight import PlainFormat, PlainWeight
from jaxgen.core.quantization import GroupedWeight
from jaxgen.kernels.kernels import EXPERTS_AXES, Kernels
from jaxgen.models.linear import Matrix
from jaxgen.models.mixed_weight import MixedCodes, MixedQuantizedWeight, joined, map_parts
from jaxgen.models.model import PackedParams, abstract_model, abstract_params, dotted
from jaxgen.models.norms import NormWeight
from jaxgen.models.packed_weight import PackedWeight, packing
from jaxgen.models.quantized_weight import Codes, QuantizedWeight
from jaxgen.models.separate_weights import SeparateWeights
from jaxgen.models.stacked_weight import StackedWeight

Place = Callable[[str, Any], Any]


def placing(config: ModelConfig, kernels: Kernels) -> Place:
    """Return a function (path, value) that puts a parameter on the device in the layout of these kernels.

    The value may be on the host or the device; one that needs no other layout stays on the device as it is. A
    GroupedWeight becomes a QuantizedWeight if the kernels multiply codes, and a MixedWeight a MixedQuantizedWeight.
    """
    formats = placed_formats(config, kernels)
    leaves = {dotted(path): leaf for path, leaf in nnx.to_flat_state(abstract_model(config)[1])}
    matrices = {path for path, leaf in leaves.items() if isinstance(leaf, Matrix)}
    # XLA gives a kernel a slice of a stack as an offset, which Mosaic refuses unless it is aligned.
    apart = {path for path, leaf in leaves.items() if isinstance(leaf, NormWeight) and path.startswith("layers.")}
    splits = kernels.separate_layers and NORMS in kernels.own

    def place(path: str, value: Any) -> Any:
        if isinstance(value, AnyWeight):
            if path not in formats:
                return place(path, _numbers(value, config.dtype))
            value = _codes_of(value, formats[path])
        if isinstance(value, Codes | MixedCodes):
            return _placed_codes(value, formats[path], kernels, config)
        if path in matrices and isinstance(value, jax.Array | np.ndarray):
            return place_matrix(value, kernels)
        if splits and path in apart and isinstance(value, jax.Array | np.ndarray):
            return SeparateWeights.split(value)
        return jax.device_put(value) if isinstance(value, np.ndarray) else value

    return place


def placed_formats(config: ModelConfig, kernels: Kernels) -> dict[str, AnyFormat]:
    """Return the formats of the weights that stay codes where these kernels read them, by path."""
    placed = ((path, kernels.placed(form)) for path, form in config.weight_formats)
    return {path: form for path, form in placed if form is not None}


def _codes_of(weight: AnyWeight, weight_format: Any) -> Codes | MixedCodes:
    """Return the arrays of a weight in the format in which it is placed."""
    if isinstance(weight, GroupedWeight):
        return Codes.of(weight.as_placed(weight_format))
    return MixedCodes(tuple(tuple(map(_arrays_of, kind)) for kind in weight.as_placed(weight_format).kinds))


def _arrays_of(part: PartWeight) -> Any:
    """Return the codes of a part of a weight, or the array of its numbers."""
    return part.numbers if isinstance(part, PlainWeight) else Codes.of(part)


def _abstract_arrays(shape: tuple[int, ...], part_format: PartFormat) -> Any:
    """Return the shapes and dtypes of ``_arrays_of``."""
    if isinstance(part_format, PlainFormat):
        return jax.ShapeDtypeStruct(shape, jnp.dtype(part_format.dtype))
    return Codes.abstract(shape, part_format)


def _placed_codes(
    weight: Any, weight_format: AnyFormat, kernels: Kernels, config: ModelConfig, *, apart: bool = False
) -> Any:
    """Return a quantized weight packed for its kernel, with separate layers if the program has them so.

    ``apart``: whether that holds for kernels too that read a layer of a stack.
    """
    if isinstance(weight_format, MixedFormat):
        return _placed_kinds(weight, weight_format, kernels, config)
    kernel = kernels.floats if weight_format.floats else kernels.quantized
    assert kernel is not None
    fp8 = config.fp8_inputs and weight_format.title == "fp8"
    *stack, outputs, width = weight.codes.shape
    shape = (*stack, outputs, width * 8 // weight_format.bits)
    kernel = kernel.of_weight(weight_format, shape, config.dtype, fp8_inputs=fp8)
    pack = partial(QuantizedWeight.pack, weight_format, kernel=kernel, dtype=config.dtype, fp8_inputs=fp8)
    if not kernels.separate_layers or len(stack) == 0 or (len(stack) == 1 and kernel.reads_stacks and not apart):
        return pack(weight)
    layers = range(len(weight.codes))
    return SeparateWeights(tuple(pack(weight.only(slice(layer, layer + 1))) for layer in layers))


def _placed_kinds(weight: MixedCodes, weight_format: MixedFormat, kernels: Kernels, config: ModelConfig) -> Any:
    kinds = tuple(
        tuple(_placed_part(arrays, part.form, kernels, config) for arrays, part in zip(parts, kind, strict=True))
        for parts, kind in zip(weight.kinds, weight_format.kinds, strict=True)
    )
    if not kernels.separate_layers:
        return MixedQuantizedWeight(kinds, jnp.zeros((), jnp.int32), weight_format.layers)
    places = (place_of(weight_format.layers, layer) for layer in range(len(weight_format.layers)))
    return SeparateWeights(tuple(joined(tuple(part.at(place) for part in kinds[kind])) for kind, place in places))


def _placed_part(arrays: Any, part_format: PartFormat, kernels: Kernels, config: ModelConfig) -> Any:
    """Return a part of a weight as ``_placed_codes`` does, or its numbers packed."""
    if not isinstance(part_format, PlainFormat):
        return _placed_codes(arrays, part_format, kernels, config, apart=True)
    pack = partial(PackedWeight.pack, kernel=packing(kernels))
    if not kernels.separate_layers:
        return pack(jnp.asarray(arrays))
    layers = range(len(arrays))
    return SeparateWeights(tuple(pack(jnp.asarray(arrays[layer : layer + 1])) for layer in layers))


def place_matrix(value: Any, kernels: Kernels) -> Any:
    """Return a Matrix [*layers, *experts, out, in] on the device in the layout of these kernels."""
    if kernels.packed is not None and kernels.packed.packs(value.shape, value.dtype.name):
        return PackedWeight.pack(jax.device_put(value), kernels.packed)
    if kernels.separate_layers and value.ndim > 2:
        return SeparateWeights.split(value)
    value = jax.device_put(value)
    return StackedWeight(value, jnp.zeros((), jnp.int32)) if value.ndim == EXPERTS_AXES else value


def _numbers(weight: AnyWeight, dtype: str) -> np.ndarray:
    """Return the weight as numbers of ``dtype``. Takes memory for them and for one weight of the stack in float32."""
    result = np.empty(weight.shape, jnp.dtype(dtype))
    for index in np.ndindex(*weight.shape[:-2]):
        result[index] = weight.dequantized(index)
    return result


def pack_params(config: ModelConfig, params: PackedParams, kernels: Kernels) -> PackedParams:
    """Return all parameters, placed. They are removed one by one from ``params``: at most one is in memory twice."""
    place = placing(config, kernels)
    return {path: place(path, params.pop(path)) for path in list(params)}


def abstract_packed_params(config: ModelConfig, kernels: Kernels) -> PackedParams:
    """Return the shapes and dtypes of the result of ``pack_params``."""
    loaded: PackedParams = dict(abstract_params(config))
    for path, weight_format in placed_formats(config, kernels).items():
        loaded[path] = map_parts(_abstract_arrays, loaded[path].shape, weight_format)
    packed: PackedParams = jax.eval_shape(lambda params: pack_params(config, params, kernels), loaded)
    return packed
