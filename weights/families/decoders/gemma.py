"""Gemma 2 and the text of Gemma 3 (arXiv 2408.00118, 2503.19786): norms around each sub-layer, of weights 1 + w, scaled
embeddings, and layers with a window among those without; Gemma 2 caps scores and logits, Gemma 3 has a norm of each
head's queries and keys, and another rotary embedding where there is a window."""

from math import sqrt
from typing import Any

from jaxgen.weights.families.family import (
    BOTH_WAYS,
    FULL,
    SLIDING,
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
    RopeConfig,
    read_layer_types,
    read_rope,
    read_sizes,
    windows_of,
)

_ACTIVATIONS = ("gelu_pytorch_tanh", "gelu_tanh", "gelu_new", "gelu_fast", "gelu")
"""Names of what is the approximation by tanh in every Gemma: configurations that say gelu mean it too."""


def _read(fields: JsonFields, sizes: dict[str, Any], types: tuple[str, ...], **attention: Any) -> dict[str, Any]:
    """Return the fields of the description that both have in common."""
    if fields.get("hidden_activation") is not None:
        fields.choice("hidden_activation", "gelu_pytorch_tanh", _ACTIVATIONS)
    fields.must_be("use_bidirectional_attention", False, BOTH_WAYS)
    bias, window = fields.boolean("attention_bias", False), fields.size_or_null("sliding_window", 4096)
    fields.must_be("sliding_window_size", window, "it must repeat sliding_window")
    return sizes | {
        "windows": windows_of(types, window),
        "norm": NormConfig(eps=fields.positive("rms_norm_eps", 1e-6), scale_in_float32=True),
        "placement": "sandwich",
        "attention": AttentionConfig(
            qkv_bias=bias,
            out_bias=bias,
            scale=fields.positive("query_pre_attn_scalar", 256.0) ** -0.5,
            soft_cap=fields.positive_or_null("attn_logit_softcapping"),
            **attention,
        ),
        "mlp": MLPConfig(activation="gelu_tanh"),
        "embed_scale": sqrt(sizes["hidden_size"]),
    }


def read_gemma2(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description of a Gemma 2."""
    sizes = read_sizes(fields, dtype, max_position=8192, kv_heads=4, head_dim=256)
    types = read_layer_types(fields, sizes["num_layers"], lambda layer: layer % 2 == 0)
    rope = read_rope(fields, sizes["max_position"], sizes["head_dim"])
    return DecoderConfig(
        **_read(_with_caps(fields), sizes, types),
        positions=PositionConfig(ropes=(rope,)),
        head=HeadConfig(tied=fields.boolean("tie_word_embeddings", True), soft_cap=_final_cap(fields, 30.0)),
    )


def read_gemma3(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description of the text of a Gemma 3."""
    # files of the larger models say only what is not as in the smallest
    defaults: dict[str, int] = {"vocab_size": 262_208, "num_heads": 8, "max_position": 131_072}
    sizes = read_sizes(fields, dtype, **defaults, kv_heads=4, head_dim=256)
    pattern = fields.size("sliding_window_pattern", 6)
    types = read_layer_types(fields, sizes["num_layers"], lambda layer: (layer + 1) % pattern != 0)
    norm = NormConfig(eps=fields.positive("rms_norm_eps", 1e-6), scale_in_float32=True)
    return DecoderConfig(
        **_read(fields, sizes, types, qk_norm=norm),
        positions=_gemma3_positions(fields, sizes, types),
        head=HeadConfig(tied=fields.boolean("tie_word_embeddings", True), soft_cap=_gemma3_cap(fields)),
    )


def _with_caps(fields: JsonFields) -> JsonFields:
    """Return the fields with Gemma 2's default cap of scores."""
    return JsonFields({"attn_logit_softcapping": 50.0} | dict(fields.data), fields.source, fields.used)


def _gemma3_cap(fields: JsonFields) -> float | None:
    """transformers caps no scores of a Gemma 3, and no logits where images can be part of a text."""
    fields.must_be("attn_logit_softcapping", None)
    if "text_config" in fields.source:
        fields.must_be("final_logit_softcapping", None)
    return _final_cap(fields, None)


def _final_cap(fields: JsonFields, default: float | None) -> float | None:
    name = "final_logit_softcapping"
    return fields.positive_or_null(name) if name in fields.data else default


def _gemma3_positions(fields: JsonFields, sizes: dict[str, Any], types: tuple[str, ...]) -> PositionConfig:
    local_theta = fields.positive("rope_local_base_freq", 10_000.0)
    lengths = sizes["max_position"], sizes["head_dim"]
    ropes = fields.get("rope_parameters")
    if isinstance(ropes, dict) and isinstance(ropes.get(SLIDING), dict):
        local = read_rope(fields, *lengths, theta=local_theta, part=SLIDING, theta_name="rope_local_base_freq")
    else:
        local = RopeConfig(theta=local_theta)
    full = read_rope(fields, *lengths, theta=1_000_000.0, part=FULL)
    return PositionConfig(ropes=(local, full), layer_ropes=tuple(int(kind == FULL) for kind in types))


FAMILY = Family(
    name="gemma",
    read={"Gemma2ForCausalLM": read_gemma2, "Gemma3ForCausalLM": read_gemma3},
    parameters=DecoderNames(
        attn_post_norm="post_attention_layernorm",
        mlp_norm="pre_feedforward_layernorm",
        mlp_post_norm="post_feedforward_layernorm",
        norm_plus=1.0,
    ).table,
    # hidden_act is of old files, and not what is computed; the cache's kind is transformers'
    ignored=("hidden_act", "cache_implementation", "sliding_window_pattern", "layer_types", "attn_logit_softcapping"),
)
