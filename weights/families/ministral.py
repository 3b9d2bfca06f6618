"""Ministral and Ministral 3: Mistral with a window in some layers only, or with yarn and queries scaled by position."""

from jaxgen.core.config import DType
from jaxgen.core.decoder_config import DecoderConfig, HeadConfig, NormConfig, PositionConfig, QueryScale
from jaxgen.weights.config_fields import Fields
from jaxgen.weights.decoder_names import DecoderNames
from jaxgen.weights.family import Family, read_layer_types, read_sizes, windows_of
from jaxgen.weights.rope_config import read_rope, rope_fields

_BETA = "llama_4_scaling_beta"


def read_ministral(fields: Fields, dtype: DType) -> DecoderConfig:
    """Return the description of either."""
    sizes = read_sizes(fields, dtype, max_position=131_072, kv_heads=8)
    fields.choice("hidden_act", "silu", ("silu",))
    window = fields.size_or_null("sliding_window")
    types = read_layer_types(fields, sizes["num_layers"], lambda _layer: True)
    rope = read_rope(fields, sizes["max_position"], sizes["head_dim"], others=(_BETA,))
    beta = rope_fields(fields).positive_or_null(_BETA)
    scale = None if beta is None else QueryScale(beta=beta, original_max_position=rope.original_max_position)
    return DecoderConfig(
        **sizes,
        family="ministral",
        windows=windows_of(types, window),
        norm=NormConfig(eps=fields.positive("rms_norm_eps", 1e-6)),
        positions=PositionConfig(ropes=(rope,), query_scale=scale),
        head=HeadConfig(tied=fields.boolean("tie_word_embeddings", False)),
    )


FAMILY = Family(
    name="ministral",
    read={"MinistralForCausalLM": read_ministral, "Ministral3ForCausalLM": read_ministral},
    parameters=DecoderNames().table,
)
