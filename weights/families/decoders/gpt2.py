"""GPT-2 (Radford et al., 2019): learned positions, LayerNorm, a plain MLP, and matrices stored as [in, out]."""

from jaxgen.weights.families.family import (
    AttentionConfig,
    DecoderConfig,
    DecoderNames,
    DType,
    Family,
    HeadConfig,
    JsonFields,
    MLPConfig,
    NormConfig,
    PositionConfig,
    read_activation,
    read_head_dim,
)


def read_gpt2(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    width, heads = fields.size("n_embd"), fields.size("n_head")
    for name in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"):
        fields.must_be(name, False)
    activation = read_activation(fields, "activation_function", "gelu_new")
    return DecoderConfig(
        vocab_size=fields.size("vocab_size"),
        hidden_size=width,
        intermediate_size=fields.size_or_null("n_inner") or 4 * width,
        num_layers=fields.size("n_layer"),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=read_head_dim(fields, width, heads),
        max_position=fields.size("n_positions", 1024),
        dtype=dtype,
        norm=NormConfig(kind="layer", eps=fields.positive("layer_norm_epsilon", 1e-5)),
        positions=PositionConfig(table_offset=0),
        attention=AttentionConfig(
            qkv_bias=True, out_bias=True, scale=None if fields.boolean("scale_attn_weights", True) else 1.0
        ),
        mlp=MLPConfig(gated=False, activation=activation, up_bias=True, down_bias=True),
        head=HeadConfig(tied=fields.boolean("tie_word_embeddings", True)),
    )


FAMILY = Family(
    name="gpt2",
    read={"GPT2LMHeadModel": read_gpt2},
    parameters=DecoderNames(
        embed="transformer.wte",
        positions="transformer.wpe",
        layer="transformer.h.{layer}",
        attn_norm="ln_1",
        qkv=("attn.c_attn",),
        out="attn.c_proj",
        mlp_norm="ln_2",
        up="mlp.c_fc",
        down="mlp.c_proj",
        norm="transformer.ln_f",
        transposed=True,
    ).table,
    ignored=(
        *("n_ctx", "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"),
        *("summary_first_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop"),
        *("n_special", "predict_special_tokens", "output_past"),
    ),
)
