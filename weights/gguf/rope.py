"""Describe the rotary embedding of a GGUF file as config.json does. Host only, no jax."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxgen.weights.families.config_fields import REQUIRED, JsonFields
from jaxgen.weights.gguf.file import GgufFile, shortest

FREQUENCIES = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
TENSORS = (FREQUENCIES, LONG, SHORT)
"""Tensors by whose numbers the frequencies of a head are divided."""
_SCALING = "rope.scaling."
_ORIGINAL = f"{_SCALING}original_context_length"
LOG_MULTIPLIER = f"{_SCALING}yarn_log_multiplier"
"""Refused, unless the architecture has read it."""


def rope_parameters(
    file: GgufFile,
    own: JsonFields,
    head_dim: int,
    *,
    partial: bool = False,
    theta: float = 10_000.0,
    yarn: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return ``rope_parameters`` of config.json. ``own``: the metadata of the architecture.

    ``partial``: whether only a part of each head may be rotated. ``theta``: the default, or REQUIRED. ``yarn``: what
    the architecture adds to yarn. Raises ConfigError for a scaling that is not known, or whose meaning differs between
    programs.
    """
    rope: dict[str, Any] = {"rope_theta": own.positive("rope.freq_base", theta)}
    rotary = own.size("rope.dimension_count", head_dim)
    if partial:
        rope["partial_rotary_factor"] = rotary / head_dim
    elif rotary != head_dim:
        raise own.error("rope.dimension_count", f"must be the size of a head, {head_dim}, not {rotary}")
    own.ignore(f"{_SCALING}finetuned")
    kind = own.choice(f"{_SCALING}type", "linear", ("none", "linear", "yarn", "longrope"))
    if kind == "yarn":
        return rope | _yarn(own) | dict(yarn or {})
    factor = own.get(f"{_SCALING}factor") or own.get("rope.scale_linear") or 1.0
    if any(name in file.tensors for name in TENSORS):
        if factor != 1.0:
            raise own.error(f"{_SCALING}factor", f"{factor} is not supported together with a tensor of factors")
        return rope | _factors(file, own)
    if kind == "longrope":
        raise own.error(f"{_SCALING}type", f"is 'longrope', but the tensor {LONG} is missing")
    own.ignore(_ORIGINAL)
    if kind == "none" or factor == 1.0:
        return rope | {"rope_type": "default"}
    return rope | {"rope_type": "linear", "factor": own.positive(f"{_SCALING}factor", float(factor))}


def _yarn(own: JsonFields) -> dict[str, Any]:
    own.must_be(f"{_SCALING}yarn_ext_factor", 1.0)
    for name in (f"{_SCALING}attn_factor", f"{_SCALING}yarn_attn_factor", LOG_MULTIPLIER):
        if name not in own.used and own.get(name) is not None:
            raise own.error(name, "is not supported with yarn: programs differ in what it means")
    return {
        "rope_type": "yarn",
        "factor": own.positive(f"{_SCALING}factor"),
        "original_max_position_embeddings": own.size(_ORIGINAL),
        "beta_fast": own.positive(f"{_SCALING}yarn_beta_fast", 32.0),
        "beta_slow": own.positive(f"{_SCALING}yarn_beta_slow", 1.0),
    }


def _factors(file: GgufFile, own: JsonFields) -> dict[str, Any]:
    """Return the rotary embedding whose frequencies are divided by numbers of their own.

    Those of Llama 3.1 and later are in the file as such numbers, from which the fields of its scaling do not follow.
    """
    one = FREQUENCIES in file.tensors
    long, short = (FREQUENCIES, FREQUENCIES) if one else (LONG, SHORT)
    original = own.size(_ORIGINAL, own.size("context_length") if one else REQUIRED)
    attention = 1.0 if one else own.positive_or_null(f"{_SCALING}attn_factor")
    return {
        "rope_type": "longrope",
        "long_factor": _numbers(file, own, long),
        "short_factor": _numbers(file, own, short),
        "original_max_position_embeddings": original,
        **({} if attention is None else {"attention_factor": attention}),
    }


def _numbers(file: GgufFile, own: JsonFields, name: str) -> list[float]:
    if name not in file.tensors:
        raise own.error(f"{_SCALING}type", f"needs the tensor {name}, which is missing")
    return [shortest(value) for value in file.tensors[name].dequantised(np.float32).tolist()]
