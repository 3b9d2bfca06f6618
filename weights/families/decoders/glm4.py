"""GLM-4 (0414): norms around each sub-layer, half of each head rotated in neighbouring pairs, gate and up merged."""

from jaxgen.weights.families.family import (
    INTERLEAVED,
    DecoderConfig,
    DecoderNames,
    DType,
    Family,
    JsonFields,
    read_decoder,
    replace,
)


def read_glm4(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    config = read_decoder(fields, dtype, max_position=131_072, kv_heads=2, head_dim=128, eps=1.5625e-07, partial=0.5)
    attention = replace(config.attention, qkv_bias=fields.boolean("attention_bias", True))
    return replace(config, placement="sandwich", attention=attention)


FAMILY = Family(
    name="glm4",
    read={"Glm4ForCausalLM": read_glm4},
    parameters=DecoderNames(
        attn_post_norm="post_self_attn_layernorm",
        mlp_norm="post_attention_layernorm",
        mlp_post_norm="post_mlp_layernorm",
        gate_up=("mlp.gate_up_proj",),
        rows=INTERLEAVED,
    ).table,
)
