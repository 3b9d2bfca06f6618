"""Phi-1 to Phi-2: attention and a plain MLP side by side behind one LayerNorm, and part of each head rotated."""

from jaxgen.weights.families.family import (
    AttentionConfig,
    DecoderConfig,
    DecoderNames,
    DType,
    Family,
    JsonFields,
    read_decoder,
    replace,
)


def read_phi(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    config = read_decoder(
        fields,
        dtype,
        max_position=2048,
        eps=1e-5,
        eps_name="layer_norm_eps",
        layer_norm=True,
        activation="gelu_new",
        gated=False,
        partial=0.5,
    )
    qk_norm = config.norm if fields.boolean("qk_layernorm", False) else None
    return replace(
        config,
        placement="parallel",
        attention=AttentionConfig(qkv_bias=True, out_bias=True, qk_norm=qk_norm),
        mlp=replace(config.mlp, up_bias=True, down_bias=True),
        head=replace(config.head, bias=True),
    )


FAMILY = Family(
    name="phi",
    read={"PhiForCausalLM": read_phi},
    parameters=DecoderNames(
        q_norm="self_attn.q_layernorm",
        k_norm="self_attn.k_layernorm",
        out="self_attn.dense",
        up="mlp.fc1",
        down="mlp.fc2",
        norm="model.final_layernorm",
    ).table,
)
