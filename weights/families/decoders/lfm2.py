"""LFM2 and LFM2.5 (Liquid AI, arXiv 2511.23404): most layers mix neighbours by a gated short convolution; the others
have attention with a norm of each head's queries and keys. All but the first layers may have experts."""

from jaxgen.core.layer_kind import ConvolutionConfig, LayerKind
from jaxgen.weights.families.family import (
    FULL,
    MOE_TRAINING,
    DecoderConfig,
    DecoderNames,
    DType,
    Family,
    JsonFields,
    MoEConfig,
    read_decoder,
    replace,
)

_CONV = "conv"
_OTHER_NAMES = {"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"}
"""Names that files may have in place of the usual ones, and that hold where there are both."""


def read_lfm2(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    given = {name: fields.get(other) for other, name in _OTHER_NAMES.items() if other in fields.data}
    fields = JsonFields({**fields.data, **given}, fields.source, fields.used)
    fields.must_be("block_use_swiglu", True)
    config = _read(fields, dtype)
    return replace(config, intermediate_size=_adjusted(fields, config.intermediate_size))


def read_lfm2_moe(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description of a model with experts, whose first layers have MLPs of the given width."""
    given = {"tie_word_embeddings": fields.get("tie_embedding")} if "tie_embedding" in fields.data else {}
    fields = JsonFields({**fields.data, **given}, fields.source, fields.used)
    config = _read(fields, dtype)
    first = fields.count("num_dense_layers", 2)
    if first >= config.num_layers:
        return config
    moe = MoEConfig(
        experts=fields.size("num_experts", 32),
        per_token=fields.size("num_experts_per_tok", 4),
        inner=fields.size("moe_intermediate_size", 1792),
        scoring="sigmoid",
        renormalise=fields.boolean("norm_topk_prob", True),
        least_sum=1e-6,
        corrected=fields.boolean("use_expert_bias", True),
        scale=fields.positive("routed_scaling_factor", 1.0),
    )
    return replace(config, moe=moe, dense_layers=tuple(range(first)))


def _read(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return what models with experts and without have."""
    fields.must_be("use_pos_enc", True)
    config = read_decoder(
        fields,
        dtype,
        max_position=128_000,
        kv_heads=8,
        eps=1e-5,
        eps_name="norm_eps",
        theta=1_000_000.0,
        tied=True,
    )
    taps, bias = fields.size("conv_L_cache", 3), fields.boolean("conv_bias", False)
    if taps == 1:
        raise fields.error("conv_L_cache", "must be at least 2, not 1")
    kinds = _kinds(fields, config.num_layers)
    return replace(
        config,
        attention=replace(config.attention, qk_norm=config.norm),
        layer_kinds=kinds,
        convolution=ConvolutionConfig(taps=taps, bias=bias) if kinds else None,
    )


def _adjusted(fields: JsonFields, inner: int) -> int:
    """Return the width of an MLP of three matrices, which has the numbers of one of two matrices of width ``inner``."""
    multiple, multiplier = fields.size("block_multiple_of", 256), _multiplier(fields)
    if not fields.boolean("block_auto_adjust_ff_dim", True):
        return inner
    adjusted = 2 * inner // 3
    if multiplier is not None:
        adjusted = -(-int(multiplier * adjusted) // multiple) * multiple
    if not adjusted:
        raise fields.error("intermediate_size", f"({inner}) is too small: block_auto_adjust_ff_dim makes 0 of it")
    return adjusted


def _multiplier(fields: JsonFields) -> float | None:
    name = "block_ffn_dim_multiplier"
    return fields.positive_or_null(name) if name in fields.data else 1.0


def _kinds(fields: JsonFields, num_layers: int) -> tuple[LayerKind, ...]:
    """Return the kind of each layer; empty if all have attention. Raises ConfigError if none has."""
    wanted = f"{FULL!r} and {_CONV!r}"
    listed = fields.by_layer("layer_types", num_layers, wanted, lambda kind: kind in (FULL, _CONV))
    types: tuple[str, ...] = _types(fields, num_layers) if listed is None else listed
    if FULL not in types:
        raise fields.error("layer_types", f"must have {FULL!r} for a layer at least: without one there is no KV cache")
    return tuple(["attention" if kind == FULL else "conv" for kind in types]) if _CONV in types else ()


def _types(fields: JsonFields, num_layers: int) -> tuple[str, ...]:
    """Return the types of the layers, where the file lists the numbers of those with attention."""
    numbers = fields.get("full_attn_idxs")
    if numbers is None:
        return (FULL,) * num_layers
    if not isinstance(numbers, list) or not all(type(one) is int for one in numbers):
        raise fields.error("full_attn_idxs", f"must be a list of layers' numbers, not {numbers!r:.80}")
    return tuple([FULL if layer in numbers else _CONV for layer in range(num_layers)])


FAMILY = Family(
    name="lfm2",
    read={"Lfm2ForCausalLM": read_lfm2, "Lfm2MoeForCausalLM": read_lfm2_moe},
    parameters=DecoderNames(
        attn_norm="operator_norm",
        q_norm="self_attn.q_layernorm",
        k_norm="self_attn.k_layernorm",
        out="self_attn.out_proj",
        mlp_norm="ffn_norm",
        gate_up=("feed_forward.w1", "feed_forward.w3"),
        down="feed_forward.w2",
        router="feed_forward.gate",
        correction="feed_forward.expert_bias",
        expert_gate_up=("feed_forward.experts.{expert}.w1", "feed_forward.experts.{expert}.w3"),
        expert_down="feed_forward.experts.{expert}.w2",
        norm="model.embedding_norm",
    ).table,
    ignored=(
        *MOE_TRAINING,
        "full_attn_idxs",
        *("block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale", "block_use_xavier_init"),
        *("conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads"),
    ),
)
