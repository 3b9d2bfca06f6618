"""GPT-NeoX and Pythia (arXiv 2204.06745, 2304.01373): two LayerNorms, attention and MLP side by side or in sequence."""

from jaxgen.weights.families.family import (
    DecoderConfig,
    DecoderNames,
    DType,
    Family,
    JsonFields,
    PositionConfig,
    by_head,
    read_decoder,
    read_rope,
    read_sizes,
    replace,
)


def read_gpt_neox(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    sizes = read_sizes(fields, dtype, max_position=2048)
    rope = read_rope(
        fields,
        sizes["max_position"],
        sizes["head_dim"],
        partial=0.25,
        theta_name="rotary_emb_base",
        partial_name="rotary_pct",
    )
    config = read_decoder(
        fields,
        dtype,
        max_position=2048,
        eps=1e-5,
        eps_name="layer_norm_eps",
        layer_norm=True,
        activation="gelu",
        gated=False,
        attention_bias=True,
        placement="parallel_two" if fields.boolean("use_parallel_residual", True) else "pre",
        positions=PositionConfig(ropes=(rope,)),
    )
    return replace(config, mlp=replace(config.mlp, up_bias=True, down_bias=True))


FAMILY = Family(
    name="gpt_neox",
    read={"GPTNeoXForCausalLM": read_gpt_neox},
    parameters=DecoderNames(
        embed="gpt_neox.embed_in",
        layer="gpt_neox.layers.{layer}",
        qkv=("attention.query_key_value",),
        out="attention.dense",
        up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
        norm="gpt_neox.final_layer_norm",
        head="embed_out",
        rows={"attention.query_key_value": by_head},
    ).table,
    ignored=("rope_theta",),
)
