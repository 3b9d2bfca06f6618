"""Qwen1.5-MoE, Qwen2-MoE and Qwen3-MoE (arXiv 2407.10671, 2505.09388): Qwen2 and Qwen3 with experts in place of the
MLP; Qwen2-MoE also has an expert that all tokens go through, with a gate."""

from jaxgen.weights.families.decoders.qwen2 import read_qwen2
from jaxgen.weights.families.decoders.qwen3 import read_qwen3
from jaxgen.weights.families.family import (
    MOE_TRAINING,
    DecoderConfig,
    DecoderNames,
    DType,
    Family,
    JsonFields,
    MoEConfig,
    replace,
)


def all_layers_have_experts(fields: JsonFields) -> None:
    """Raise ConfigError if some layers have an MLP."""
    fields.must_be("decoder_sparse_step", 1, "layers with and without experts are not computed together")
    if fields.get("mlp_only_layers"):
        raise fields.error(
            "mlp_only_layers", "must be empty: a model with experts in only some layers is not supported"
        )


def read_qwen2_moe(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description of a Qwen2-MoE."""
    all_layers_have_experts(fields)
    moe = MoEConfig(
        experts=fields.size("num_experts", 60),
        per_token=fields.size("num_experts_per_tok", 4),
        inner=fields.size("moe_intermediate_size", 1408),
        renormalise=fields.boolean("norm_topk_prob", False),
        shared_inner=fields.size("shared_expert_intermediate_size", 5632),
        shared_gate=True,
    )
    first = fields.count("max_window_layers", 28)
    config = read_qwen2(fields, dtype, lambda layer: layer % 2 == 0 and layer < first, kv_heads=16)
    bias = fields.boolean("qkv_bias", True)
    return replace(config, moe=moe, attention=replace(config.attention, qkv_bias=bias))


def read_qwen3_moe(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description of a Qwen3-MoE."""
    all_layers_have_experts(fields)
    name = "num_local_experts" if fields.data.get("num_experts") is None else "num_experts"
    moe = MoEConfig(
        experts=fields.size(name, 128),
        per_token=fields.size("num_experts_per_tok", 8),
        inner=fields.size("moe_intermediate_size", 768),
        renormalise=fields.boolean("norm_topk_prob", False),
    )
    config = read_qwen3(fields, dtype, lambda _layer: True, kv_heads=4, head_dim=None)
    return replace(config, moe=moe)


FAMILY = Family(
    name="qwen_moe",
    read={"Qwen2MoeForCausalLM": read_qwen2_moe, "Qwen3MoeForCausalLM": read_qwen3_moe},
    parameters=DecoderNames().table,
    ignored=(*MOE_TRAINING, "sliding_window", "max_window_layers", "layer_types"),
)
