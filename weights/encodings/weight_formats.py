"""Choose the formats of a model's weights, and count their bytes. Host only, no jax."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.errors import ConfigError
from jaxgen.core.layer_kind import path_without_stack
from jaxgen.core.mixed_weight import AnyFormat, MixedFormat
from jaxgen.core.model_config import DType, ModelConfig
from jaxgen.core.quantization import STORED_AS, Quantization, WeightFormat
from jaxgen.weights.families.parameters import parameters
from jaxgen.weights.families.tensors import Parameter

EMBEDDINGS = _EMBEDDING, _HEAD, _LAYER_TABLE = ("embed.weight", "lm_head.weight", "layer_embedding.table.weight")
PRODUCTS = (
    *("layers.attn.qkv.weight", "layers.attn.out.weight"),
    *("layers.mlp.gate_up.weight", "layers.mlp.up.weight", "layers.mlp.down.weight"),
    *("layers.mlp.experts.gate_up.weight", "layers.mlp.experts.down.weight"),
    *("layers.mlp.shared.gate_up.weight", "layers.mlp.shared.down.weight"),
    *("layers.attn.down.weight", "layers.attn.q_up.weight"),
    *("layers.conv.in_proj.weight", "layers.conv.out.weight"),
    *("layers.delta.in_proj.weight", "layers.delta.out.weight"),
    *("layers.embedding.gate.weight", "layers.embedding.out.weight"),
)
"""Matrices of the layers' products, without small ones: routers, gates of shared experts, a head's own products with
latents, and the projections around the layers. Of models of one kind of layers, in whose paths there is no stack."""
INT8 = WeightFormat(bits=8, group=None)
INT4 = WeightFormat(bits=4, group=32)
FP8 = WeightFormat(bits=8, group=None, floats=True)
_FORMATS: dict[Quantization, tuple[WeightFormat, WeightFormat | None]] = {
    "int8": (INT8, INT8),
    "int4": (INT4, INT8),
    "fp8": (FP8, None),
}
"""Of the layers' products, and of embedding and head; None: they stay."""
FIRST_WITH_FP8 = (8, 9)
"""Compute capability of the first GPUs whose products read e4m3."""
NUMPY_DTYPES: dict[DType, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}


def is_product(path: str) -> bool:
    """Whether a parameter is a matrix of the layers' products, which may be quantized."""
    return path_without_stack(path) in PRODUCTS


def quantized_config[Config: ModelConfig](config: Config, quantization: Quantization) -> Config:
    """Return the configuration with its matrices in the formats that a quantization makes; "none" leaves all.

    Raises ConfigError for a matrix that cannot be in its format.
    """
    if quantization == "none":
        return config
    if quantization in STORED_AS:
        return with_fp8_inputs(quantized_config(config, STORED_AS[quantization]))
    if quantization not in _FORMATS:
        names = ", ".join((*_FORMATS, *STORED_AS))
        raise ConfigError(f"--quantization must be none or one of {names}, not {quantization!r:.40}")
    of_products, of_embeddings = _FORMATS[quantization]
    formats: dict[str, WeightFormat] = {}
    for path in (parameter.path for parameter in parameters(config)):
        chosen = of_products if is_product(path) else of_embeddings if path in EMBEDDINGS else None
        if chosen is not None:
            formats[path] = _by_layer(config, chosen) if path == _LAYER_TABLE else chosen
    for parameter in parameters(config):
        if parameter.path in formats and formats[parameter.path].bits == 4 and parameter.shape[-1] % 2:
            raise ConfigError(
                f"--quantization {quantization}: {parameter.path} has {parameter.shape[-1]} inputs, an odd number: "
                "use int8"
            )
    return with_formats(config, formats)


def _by_layer(config: ModelConfig, form: WeightFormat) -> WeightFormat:
    """Return the format with a scale for each layer's embedding of a token, where its size is that of a group."""
    assert isinstance(config, DecoderConfig)
    assert config.layer_embedding is not None, "the table is its"
    result = replace(form, group=config.layer_embedding.width)
    return result if result.is_computed else form


def with_fp8_inputs[Config: ModelConfig](config: Config) -> Config:
    """Return the configuration with products in FP8 that round their inputs to FP8, by token.

    Raises ConfigError for weights in FP8 with scales of groups of inputs: these cannot be applied after a product.
    """
    for path, parts in config.weight_formats:
        groups = [form.group for form in parts.forms if form.title == "fp8" and form.group is not None]
        if groups:
            raise ConfigError(
                f"--quantization fp8_dynamic: {path} has scales for groups of {groups[0]} inputs, and needs one for "
                "each output or matrix: use --quantization fp8, which leaves activations as they are"
            )
    return replace(config, fp8_inputs=True)


def with_formats[Config: ModelConfig](config: Config, formats: Mapping[str, AnyFormat]) -> Config:
    """Return the configuration with these formats by path, whose numbers have its dtype."""
    given = {
        path: form.in_dtype(config.dtype) if isinstance(form, MixedFormat) else form for path, form in formats.items()
    }
    return replace(config, weight_formats=tuple(sorted(given.items())))


def with_dtype[Config: ModelConfig](config: Config, dtype: DType) -> Config:
    """Return the configuration for a model that is computed in another dtype."""
    return with_formats(replace(config, dtype=dtype), dict(config.weight_formats))


def quantization_of(config: ModelConfig) -> str:
    """Return what the codes of the fewest bits of any weight are called; "none": there are no codes."""
    fewest = min(
        (form for _, parts in config.weight_formats for form in parts.forms), key=lambda form: form.bits, default=None
    )
    return "none" if fewest is None else fewest.title


def kept_formats(stored: Mapping[str, AnyFormat], quantization: Quantization) -> dict[str, AnyFormat]:
    """Return the formats in which weights of a checkpoint stay: integers always, others if the quantization is theirs.

    What else is stored in floating-point codes becomes numbers, or is rounded to the quantization.
    """
    title = STORED_AS.get(quantization, quantization)
    return {
        path: parts
        for path, parts in stored.items()
        if all(not form.floats or form.title == title for form in parts.forms)
    }


def placed_config[Config: ModelConfig](config: Config, placed: Callable[[AnyFormat], AnyFormat | None]) -> Config:
    """Return the configuration with the formats that programs read; ``placed`` is WeightFormat.placed for them."""
    formats = ((path, placed(form)) for path, form in config.weight_formats)
    return with_formats(config, {path: form for path, form in formats if form is not None})


def parameter_bytes(config: ModelConfig) -> int:
    """Return the bytes of a model's parameters, each in its format or dtype."""
    formats = dict(config.weight_formats)
    return sum(_num_bytes(parameter, formats.get(parameter.path), config.dtype) for parameter in parameters(config))


def largest_matrix_bytes(config: ModelConfig, compute_capability: tuple[int, int] | None) -> int:
    """Return the bytes of the largest matrix that a step on a GPU makes of codes before it multiplies.

    Most products read codes as they are (pallas_kernels.plain_codes). Of FP4 a step makes bytes, and of FP8 numbers of
    the model's dtype on GPUs without FP8.
    """
    has_fp8 = compute_capability is not None and compute_capability >= FIRST_WITH_FP8
    formats, table = dict(config.weight_formats), {parameter.path: parameter for parameter in parameters(config)}
    for path in (_LAYER_TABLE, *((_EMBEDDING,) if _HEAD in table else ())):  # of which rows alone become numbers
        formats.pop(path, None)

    def number_bytes(form: WeightFormat) -> int:
        if not form.floats or (form.bits == 8 and has_fp8):
            return 0
        return 1 if form.bits == 4 else NUMPY_DTYPES[config.dtype].itemsize

    return max(
        (prod(table[path].shape[-2:]) * number_bytes(form) for path, parts in formats.items() for form in parts.forms),
        default=0,
    )


def _num_bytes(parameter: Parameter, form: AnyFormat | None, dtype: DType) -> int:
    if form is not None:
        return form.num_bytes(parameter.shape)
    return prod(parameter.shape) * NUMPY_DTYPES[parameter.dtype or dtype].itemsize
