"""The dense models of Granite 4 (IBM): Granite 3 with the names of a family that may also have experts and recurrent
layers, and perhaps without positions (NoPE, arXiv 2305.19466)."""

from dataclasses import replace
from typing import Any

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.decoder_parts import PositionConfig
from jaxgen.core.model_config import DType
from jaxgen.weights.families.config_fields import JsonFields
from jaxgen.weights.families.decoder_names import DecoderNames
from jaxgen.weights.families.decoders.granite import read_granite
from jaxgen.weights.families.family import FULL, MOE_TRAINING, Family

_INNER = "shared_intermediate_size"


def read_granite_hybrid(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description. Raises ConfigError for a model with experts, or with layers of another kind."""
    if experts := fields.count("num_local_experts", 8):
        raise fields.error("num_local_experts", f"is {experts}: experts next to a shared MLP are not supported, only 0")
    kinds = fields.by_layer(
        "layer_types", fields.size("num_hidden_layers"), "texts", lambda kind: isinstance(kind, str)
    )
    if other := set(kinds or ("mamba",)) - {"attention", FULL}:
        raise fields.error("layer_types", f"has {min(other)}; supported in this family: attention")
    fields.must_be("normalization_function", "rmsnorm")
    inner: dict[str, Any] = {"intermediate_size": fields.size(_INNER, 1024)}
    config = read_granite(JsonFields(dict(fields.data) | inner, fields.source, fields.used), dtype)
    kind = fields.get("position_embedding_type")
    if kind not in (None, "nope", "rope"):
        raise fields.error("position_embedding_type", f"is {kind!r}; it must be rope, nope or null")
    positions = config.positions if kind == "rope" else PositionConfig()
    return replace(config, family="granite_hybrid", positions=positions)


FAMILY = Family(
    name="granite_hybrid",
    read={"GraniteMoeHybridForCausalLM": read_granite_hybrid},
    parameters=DecoderNames(gate_up=("shared_mlp.input_linear",), down="shared_mlp.output_linear").table,
    ignored=(
        *(
            *MOE_TRAINING,
            "intermediate_size",
            "num_experts_per_tok",
            "init_method",
            "time_step_limit",
            "time_step_min",
            "time_step_max",
        ),
        *("mamba_chunk_size", "mamba_conv_bias", "mamba_d_conv", "mamba_d_head", "mamba_d_state", "mamba_expand"),
        *("mamba_n_groups", "mamba_n_heads", "mamba_proj_bias", "time_step_floor"),
    ),
)
