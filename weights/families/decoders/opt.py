"""OPT (Zhang et al., arXiv 2205.01068): learned positions, LayerNorm before each sub-layer or, in the 350m variant,
after each residual sum, with projections between a narrower embedding and the layers."""

from typing import cast

from jaxgen.core.decoder_config import opt_config
from jaxgen.weights.families.family import (
    Activation,
    DecoderConfig,
    DecoderNames,
    DType,
    Family,
    JsonFields,
    read_head_dim,
)


def read_opt(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    hidden_size, num_heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    return opt_config(
        vocab_size=fields.size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.size("ffn_dim"),
        num_layers=fields.size("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=read_head_dim(fields, hidden_size, num_heads),
        max_position=fields.size("max_position_embeddings", 2048),
        dtype=dtype,
        embed_size=fields.size_or_null("word_embed_proj_dim"),
        activation=cast(Activation, fields.choice("activation_function", "relu", ("relu", "gelu"))),
        pre_norm=fields.boolean("do_layer_norm_before", True),
        final_norm=not fields.boolean("_remove_final_layer_norm", False),
        norm_affine=fields.boolean("layer_norm_elementwise_affine", True),
        bias=fields.boolean("enable_bias", True),
        tie_embeddings=fields.boolean("tie_word_embeddings", True),
    )


FAMILY = Family(
    name="opt",
    read={"OPTForCausalLM": read_opt},
    parameters=DecoderNames(
        embed="model.decoder.embed_tokens",
        positions="model.decoder.embed_positions",
        project_in="model.decoder.project_in",
        project_out="model.decoder.project_out",
        layer="model.decoder.layers.{layer}",
        attn_norm="self_attn_layer_norm",
        out="self_attn.out_proj",
        mlp_norm="final_layer_norm",
        up="fc1",
        down="fc2",
        norm="model.decoder.final_layer_norm",
    ).table,
    ignored=("layerdrop", "dropout", "activation_dropout", "init_std"),
)
