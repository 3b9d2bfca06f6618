"""Ministral and Ministral 3: Mistral with a window in some layers only, or with yarn and queries scaled by position."""

from jaxgen.core.config import DType
from jaxgen.core.decoder_config import DecoderConfig, HeadConfig, NormConfig, PositionConfig, QueryScale
from jaxgen.weights.config_fields import Fields
from jaxgen.weights.decoder_names import DecoderNames
from jaxgen.weights.family import Family, read_layer_types, read_sizes, windows_of
from jaxgen.weights.rope_config import demand_rope, read_rope, rope_fields

_BETA = "llama_4_scaling_beta"


def read_ministral(
    fields: Fields,
    dtype: DType,
    *,
    max_position: int = 131_072,
    window: int | None = 4096,
    rms_norm_eps: float = 1e-6,
    theta: float = 10_000.0,
) -> DecoderConfig:
    """Return the description of either. ``max_position`` and so on: the defaults of its fields."""
    sizes = read_sizes(fields, dtype, max_position=max_position, kv_heads=8)
    fields.choice("hidden_act", "silu", ("silu",))
    window = fields.size_or_null("sliding_window", window)
    types = read_layer_types(fields, sizes["num_layers"], lambda _layer: True)
    others = (_BETA, "max_position_embeddings")  # repeats that of the model
    rope = read_rope(fields, sizes["max_position"], sizes["head_dim"], theta=theta, others=others)
    about = rope_fields(fields)
    beta = None if about.data.get(_BETA) == 0 else about.positive_or_null(_BETA)  # queries times 1 + 0 * ln(...)
    scale = None if beta is None else QueryScale(beta=beta, original_max_position=rope.original_max_position)
    return DecoderConfig(
        **sizes,
        family="ministral",
        windows=windows_of(types, window),
        norm=NormConfig(eps=fields.positive("rms_norm_eps", rms_norm_eps)),
        positions=PositionConfig(ropes=(rope,), query_scale=scale),
        head=HeadConfig(tied=fields.boolean("tie_word_embeddings", False)),
    )


def read_ministral3(fields: Fields, dtype: DType) -> DecoderConfig:
    """Return the description of a Ministral 3. Raises ConfigError unless the file says how it rotates."""
    demand_rope(fields)
    return read_ministral(fields, dtype, max_position=262_144, window=None, rms_norm_eps=1e-5, theta=1_000_000.0)


FAMILY = Family(
    name="ministral",
    read={"MinistralForCausalLM": read_ministral, "Ministral3ForCausalLM": read_ministral3},
    parameters=DecoderNames().table,
)
