"""OLMo 2 and 3 (arXiv 2501.00656, 2512.13961): norms of what each sub-layer adds, and of all queries and keys of a
token; OLMo 3 has layers with a window, whose rotary embedding is not extended."""

from jaxgen.weights.families.family import (
    FULL,
    SLIDING,
    AttentionConfig,
    DecoderConfig,
    DecoderNames,
    DType,
    Family,
    JsonFields,
    PositionConfig,
    RopeConfig,
    read_decoder,
    read_layer_types,
    read_rope,
    read_sizes,
    replace,
    rope_fields,
    windows_of,
)


def read_olmo2(fields: JsonFields, dtype: DType, *, theta: float = 10_000.0) -> DecoderConfig:
    """Return the description of an OLMo 2. ``theta``: the default of the rotary embedding."""
    sizes = read_sizes(fields, dtype, max_position=2048)
    rope = read_rope(fields, sizes["max_position"], sizes["head_dim"], part=FULL, theta=theta)
    positions, bias = PositionConfig(ropes=(rope,)), fields.boolean("attention_bias", False)
    config = read_decoder(
        fields, dtype, max_position=2048, eps=1e-5, scale_in_float32=True, placement="post", positions=positions
    )
    attention = AttentionConfig(qkv_bias=bias, out_bias=bias, qk_norm=config.norm, qk_norm_rows=True)
    return replace(config, attention=attention)


def read_olmo3(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description of an OLMo 3."""
    config = read_olmo2(fields, dtype, theta=500_000.0)
    types = read_layer_types(fields, config.num_layers, lambda layer: (layer + 1) % 4 != 0)
    (full,) = config.positions.ropes
    if SLIDING in rope_fields(fields).data:
        local = read_rope(fields, config.max_position, config.head_dim, part=SLIDING, theta=500_000.0)
    else:
        local = RopeConfig(theta=full.theta)
    positions = PositionConfig(ropes=(local, full), layer_ropes=tuple(int(kind == FULL) for kind in types))
    return replace(config, windows=windows_of(types, fields.size_or_null("sliding_window", 4096)), positions=positions)


FAMILY = Family(
    name="olmo",
    read={"Olmo2ForCausalLM": read_olmo2, "Olmo3ForCausalLM": read_olmo3},
    parameters=DecoderNames().table,
    ignored=("clip_qkv",),
)
