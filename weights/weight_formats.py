"""Choose the formats of a model's weights, and count their bytes. Host only, no jax."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from jaxgen.core.config import DType, ModelConfig
from jaxgen.core.errors import ConfigError
from jaxgen.core.quantization import Quantization, WeightFormat
from jaxgen.weights.names import parameters
from jaxgen.weights.tensors import Parameter

EMBEDDINGS = ("embed.weight", "lm_head.weight")
PRODUCTS = (
    *("layers.attn.qkv.weight", "layers.attn.out.weight"),
    *("layers.mlp.gate_up.weight", "layers.mlp.up.weight", "layers.mlp.down.weight"),
    *("layers.mlp.experts.gate_up.weight", "layers.mlp.experts.down.weight"),
    *("layers.mlp.shared.gate_up.weight", "layers.mlp.shared.down.weight"),
)
"""Matrices of the layers' products. Not so those that are small beside them: routers, gates of shared experts, and the
projections around the layers."""
INT8 = WeightFormat(bits=8, group=None)
INT4 = WeightFormat(bits=4, group=32)
_FORMATS: dict[Quantization, tuple[WeightFormat, WeightFormat]] = {"int8": (INT8, INT8), "int4": (INT4, INT8)}
"""Of the layers' products, and of embedding and head."""
_BYTES: dict[DType, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


def quantized_config[Config: ModelConfig](config: Config, quantization: Quantization) -> Config:
    """Return the configuration with its matrices in the formats that a quantization makes; "none" leaves all.

    Raises ConfigError for a matrix that cannot be in its format.
    """
    if quantization == "none":
        return config
    if quantization not in _FORMATS:
        raise ConfigError(f"--quantization must be none or one of {', '.join(_FORMATS)}, not {quantization!r:.40}")
    of_products, of_embeddings = _FORMATS[quantization]
    chosen = dict.fromkeys(PRODUCTS, of_products) | dict.fromkeys(EMBEDDINGS, of_embeddings)
    formats = {one.path: chosen[one.path] for one in parameters(config) if one.path in chosen}
    for one in parameters(config):
        if one.path in formats and formats[one.path].bits == 4 and one.shape[-1] % 2:
            raise ConfigError(
                f"--quantization {quantization}: {one.path} has {one.shape[-1]} inputs, an odd number: use int8"
            )
    return with_formats(config, formats)


def with_formats[Config: ModelConfig](config: Config, formats: Mapping[str, WeightFormat]) -> Config:
    """Return the configuration with these formats by path."""
    return replace(config, weight_formats=tuple(sorted(formats.items())))


def quantization_of(config: ModelConfig) -> Quantization:
    """Return what the fewest bits of any weight are called."""
    bits = min((form.bits for _, form in config.weight_formats), default=None)
    return "none" if bits is None else "int4" if bits == 4 else "int8"


def parameter_bytes(config: ModelConfig) -> int:
    """Return the bytes of a model's parameters, each in its format or dtype."""
    formats = dict(config.weight_formats)
    return sum(_num_bytes(one, formats.get(one.path), config.dtype) for one in parameters(config))


def _num_bytes(parameter: Parameter, form: WeightFormat | None, dtype: DType) -> int:
    if form is not None:
        return form.num_bytes(parameter.shape)
    return prod(parameter.shape) * _BYTES[parameter.dtype or dtype]
