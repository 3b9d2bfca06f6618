"""Falcon (arXiv 2311.16867): attention and a plain MLP side by side; one KV head (7B), or groups of queries (40B)."""

from typing import Any

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
    Parameter,
    PositionConfig,
    by_head,
    by_kv_head,
    read_activation,
    read_head_dim,
    read_rope,
)


def read_falcon(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    width, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    fields.must_be("alibi", False, "positions as biases of scores are not computed")
    new, one_head = fields.boolean("new_decoder_architecture", False), fields.boolean("multi_query", True)
    listed = fields.size_or_null("num_kv_heads") or heads
    kv_heads = listed if new else 1 if one_head else heads
    norms = fields.size_or_null("num_ln_in_parallel_attn") or 2
    inner = fields.size_or_null("ffn_hidden_size") or 4 * width
    fields.must_be("ff_factor", inner / width, "the MLP is as wide as ffn_hidden_size says")
    bias, position = fields.boolean("bias", False), fields.size("max_position_embeddings", 2048)
    head_dim = read_head_dim(fields, width, heads)
    sequential = not new and not fields.boolean("parallel_attn", True)
    return DecoderConfig(
        vocab_size=fields.size("vocab_size"),
        hidden_size=width,
        intermediate_size=inner,
        num_layers=fields.size("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position=position,
        dtype=dtype,
        norm=NormConfig(kind="layer", eps=fields.positive("layer_norm_epsilon", 1e-5)),
        placement="pre" if sequential else "parallel_two" if new and norms == 2 else "parallel",
        positions=PositionConfig(ropes=(read_rope(fields, position, head_dim),)),
        attention=AttentionConfig(qkv_bias=bias, out_bias=bias),
        mlp=MLPConfig(
            gated=False, activation=read_activation(fields, "activation", "gelu"), up_bias=bias, down_bias=bias
        ),
        head=HeadConfig(tied=fields.boolean("tie_word_embeddings", True)),
    )


def _table(config: DecoderConfig) -> tuple[Parameter, ...]:
    names: dict[str, Any] = {}
    if config.placement == "parallel_two":
        names |= {"attn_norm": "ln_attn", "mlp_norm": "ln_mlp"}
    if config.num_kv_heads > 1:
        order = by_head if config.num_kv_heads == config.num_heads else by_kv_head
        names["rows"] = {"self_attention.query_key_value": order}
    return DecoderNames(
        embed="transformer.word_embeddings",
        layer="transformer.h.{layer}",
        qkv=("self_attention.query_key_value",),
        out="self_attention.dense",
        up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
        norm="transformer.ln_f",
        **names,
    ).table(config)


FAMILY = Family(
    name="falcon",
    read={"FalconForCausalLM": read_falcon},
    parameters=_table,
    ignored=("n_head", "n_layer", "num_kv_heads", "num_ln_in_parallel_attn", "multi_query", "parallel_attn"),
)
