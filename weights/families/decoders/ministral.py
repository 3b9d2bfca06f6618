"""Ministral and Ministral 3: Mistral with a window in some layers only, or with yarn and queries scaled by position."""

from jaxgen.weights.families.family import (
    DecoderConfig,
    DecoderNames,
    DType,
    Family,
    JsonFields,
    PositionConfig,
    QueryScale,
    demand_rope,
    read_decoder,
    read_layer_types,
    read_rope,
    read_sizes,
    replace,
    rope_fields,
    windows_of,
)

_BETA = "llama_4_scaling_beta"


def read_ministral(
    fields: JsonFields,
    dtype: DType,
    *,
    max_position: int = 131_072,
    window: int | None = 4096,
    eps: float = 1e-6,
    theta: float = 10_000.0,
) -> DecoderConfig:
    """Return the description of either. ``max_position`` and so on: the defaults of its fields."""
    sizes = read_sizes(fields, dtype, max_position=max_position, kv_heads=8)
    others = (_BETA, "max_position_embeddings")  # repeats that of the model
    rope = read_rope(fields, sizes["max_position"], sizes["head_dim"], theta=theta, others=others)
    read = rope_fields(fields)
    beta = None if read.data.get(_BETA) == 0 else read.positive_or_null(_BETA)  # queries times 1 + 0 * ln(...)
    scale = None if beta is None else QueryScale(beta=beta, original_max_position=rope.original_max_position)
    positions = PositionConfig(ropes=(rope,), query_scale=scale)
    config = read_decoder(fields, dtype, max_position=max_position, kv_heads=8, eps=eps, positions=positions)
    types = read_layer_types(fields, config.num_layers, lambda _layer: True)
    return replace(config, windows=windows_of(types, fields.size_or_null("sliding_window", window)))


def read_ministral3(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description of a Ministral 3. Raises ConfigError unless the file says how it rotates."""
    demand_rope(fields)
    return read_ministral(fields, dtype, max_position=262_144, window=None, eps=1e-5, theta=1_000_000.0)


FAMILY = Family(
    name="ministral",
    read={"MinistralForCausalLM": read_ministral, "Ministral3ForCausalLM": read_ministral3},
    parameters=DecoderNames().table,
)
