"""The families of models, one in each module of ``decoders``, whose ``FAMILY`` is found by name. Host only, no jax."""

import re
from importlib import import_module
from pkgutil import iter_modules

from jaxgen.weights.families import decoders
from jaxgen.weights.families.family import Family

_MODULES = sorted(module.name for module in iter_modules(decoders.__path__))
_FOUND: list[Family] = [import_module(f"{decoders.__name__}.{name}").FAMILY for name in _MODULES]

FAMILIES: dict[str, Family] = {family.name: family for family in _FOUND}
"""By the name in a description and in manifests."""
ARCHITECTURES: dict[str, Family] = {name: family for family in FAMILIES.values() for name in family.read}


OF_MORE_THAN_TEXT = ("Gemma3Model", "Gemma4Model", "Gemma4UnifiedModel", "Qwen3_5Model", "Qwen3_5MoeModel")
"""What transformers calls models that also read images; those of their text have a name of their own."""


def without_head(architecture: str) -> str:
    """Return what transformers calls the model of an architecture without its head."""
    name = re.sub("(ForCausalLM|LMHeadModel)$", "Model", architecture)
    return name.removesuffix("Model") + "TextModel" if name in OF_MORE_THAN_TEXT else name


HEADLESS: dict[str, str] = {without_head(name): name for name in ARCHITECTURES}
"""Architectures of models without a head, which are made for embeddings, and those with one."""
