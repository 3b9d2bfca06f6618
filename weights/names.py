"""The parameters of a model, each with the tensors of a checkpoint that it is made of. Host only, no jax."""

import re
from collections.abc import Mapping

from jaxgen.core.config import ModelConfig
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.weights import tensors
from jaxgen.weights.families import FAMILIES
from jaxgen.weights.tensors import Array, Parameter, Place, Source, Value

__all__ = [
    "Array",
    "Parameter",
    "Place",
    "Source",
    "Value",
    "family_name",
    "parameters",
    "to_checkpoint",
    "unread_tensors",
]


def parameters(config: ModelConfig) -> tuple[Parameter, ...]:
    """Return the table of the model: all parameters of the tree."""
    assert isinstance(config, DecoderConfig)
    return FAMILIES[config.family].parameters(config)


def unread_tensors(config: ModelConfig) -> re.Pattern[str] | None:
    """Return the names of tensors that the family's checkpoints may have and no parameter needs."""
    assert isinstance(config, DecoderConfig)
    unread = FAMILIES[config.family].unread
    return None if unread is None else re.compile(unread)


def family_name(config: ModelConfig) -> str:
    """Return the family's name in the manifest of a converted directory."""
    assert isinstance(config, DecoderConfig)
    return config.family


def to_checkpoint(params: Mapping[str, Array], config: ModelConfig) -> dict[str, Array]:
    """Return the tree's arrays as the tensors of a Hugging Face checkpoint, by name."""
    return tensors.to_checkpoint(params, parameters(config))
