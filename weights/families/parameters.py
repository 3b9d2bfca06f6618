"""The parameters of a model, each with the tensors of a checkpoint that it is made of. Host only, no jax."""

from collections.abc import Collection, Mapping

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.weights.families import tensors
from jaxgen.weights.families.registry import FAMILIES
from jaxgen.weights.families.tensors import Parameter, Piece, Place, Source, Stacked, Value
from jaxgen.weights.files.safetensors import Array

EMBEDDING, HEAD = "embed.weight", "lm_head.weight"
"""Paths of the two matrices of a vocabulary; in most families files name the head so too."""

__all__ = [
    "EMBEDDING",
    "HEAD",
    "Array",
    "Parameter",
    "Piece",
    "Place",
    "Source",
    "Stacked",
    "Value",
    "bare_name",
    "family_name",
    "parameters",
    "to_checkpoint",
]


def parameters(config: ModelConfig) -> tuple[Parameter, ...]:
    """Return the table of the model: all parameters of the tree."""
    assert isinstance(config, DecoderConfig)
    return FAMILIES[config.family].parameters(config)


def bare_name(name: str) -> str:
    """Return what a tensor is called in files saved from the bare decoder: without ``model.`` and the like."""
    return name.partition(".")[2]


def lacks_head(config: ModelConfig, names: Collection[str]) -> bool:
    """Whether tensors of these names are a bare decoder's, without the head that ``config`` means."""
    modules = {
        parameter.path: source.name.removesuffix("weight")
        for parameter in parameters(config)
        if parameter.path in (EMBEDDING, HEAD)
        for source in parameter.sources
    }
    if HEAD not in modules:
        return False
    bare = bare_name(modules[EMBEDDING])
    return any(name.startswith(bare) for name in names) and not any(name.startswith(modules[HEAD]) for name in names)


def family_name(config: ModelConfig) -> str:
    """Return the family's name in the manifest of a converted directory."""
    assert isinstance(config, DecoderConfig)
    return config.family


def to_checkpoint(params: Mapping[str, Array], config: ModelConfig) -> dict[str, Array]:
    """Return the tree's arrays as the tensors of a Hugging Face checkpoint, by name."""
    return tensors.to_checkpoint(params, parameters(config))
