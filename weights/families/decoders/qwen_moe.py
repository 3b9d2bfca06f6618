"""Qwen1.5-MoE, Qwen2-MoE and Qwen3-MoE (arXiv 2407.10671, 2505.09388): Qwen2 and Qwen3 with experts in place of the
MLP; Qwen2-MoE also has an expert that all tokens go through, with a gate."""

from jaxgen.weights.families.decoders.deepseek import with_experts
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


def without_experts(fields: JsonFields, num_layers: int) -> tuple[int, ...]:
    """Return the numbers of the layers with an MLP: the named ones, and all but each n-th."""
    step, named = fields.size("decoder_sparse_step", 1), fields.get("mlp_only_layers") or []
    if not isinstance(named, list) or not all(type(layer) is int for layer in named):
        raise fields.error("mlp_only_layers", f"must be a list of numbers of layers, not {named!r:.80}")
    return tuple([layer for layer in range(num_layers) if layer in named or (layer + 1) % step])


def read_qwen2_moe(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description of a Qwen2-MoE."""
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
    config = replace(config, attention=replace(config.attention, qkv_bias=bias))
    return with_experts(config, moe, without_experts(fields, config.num_layers))


def read_qwen3_moe(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description of a Qwen3-MoE."""
    name = "num_local_experts" if fields.data.get("num_experts") is None else "num_experts"
    moe = MoEConfig(
        experts=fields.size(name, 128),
        per_token=fields.size("num_experts_per_tok", 8),
        inner=fields.size("moe_intermediate_size", 768),
        renormalise=fields.boolean("norm_topk_prob", False),
    )
    config = read_qwen3(fields, dtype, lambda _layer: True, kv_heads=4, head_dim=None)
    return with_experts(config, moe, without_experts(fields, config.num_layers))


FAMILY = Family(
    name="qwen_moe",
    read={"Qwen2MoeForCausalLM": read_qwen2_moe, "Qwen3MoeForCausalLM": read_qwen3_moe},
    parameters=DecoderNames().table,
    ignored=(*MOE_TRAINING, "sliding_window", "max_window_layers", "layer_types"),
)
