"""Qwen3.5 and Qwen3-Next: gated delta nets and attention in layers of their own; with experts, and other groupings of
heads."""

from functools import partial
from typing import Any

from scripts.make.goldens.recipes.common import FULL, GATED, OTHER_EPS, TIED, UNTIED, rope, ropes
from scripts.make.goldens.variant import Variant

LINEAR = "linear_attention"
_ROPE = rope(partial_rotary_factor=0.25)
_NETS: dict[str, Any] = {
    "num_hidden_layers": 3,
    "layer_types": [LINEAR, FULL, LINEAR],
    "head_dim": 32,
    "rope_parameters": _ROPE,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}
_CONTRASTS = (OTHER_EPS, *ropes(_ROPE, {"rope_theta": 10_000.0}, {"partial_rotary_factor": 0.5}))
_of_nets = partial(Variant, norm_about_one=False)

VARIANTS = {
    "qwen3_5": _of_nets(
        architecture="Qwen3_5ForCausalLM",
        settings=GATED | UNTIED | _NETS | {"attention_bias": True, "linear_num_value_heads": 6},
        contrasts=(*_CONTRASTS, {"attention_bias": False}),
    ),
    "qwen3_5_one_key": _of_nets(
        architecture="Qwen3_5ForCausalLM",
        settings=GATED | TIED | _NETS | {"linear_num_key_heads": 1, "linear_conv_kernel_dim": 3},
        contrasts=_CONTRASTS,
    ),
    "qwen3_5_moe": _of_nets(
        architecture="Qwen3_5MoeForCausalLM",
        settings=GATED | UNTIED | _NETS | _EXPERTS,
        contrasts=(*_CONTRASTS, {"num_experts_per_tok": 3}),
    ),
    "qwen3_next": _of_nets(
        architecture="Qwen3NextForCausalLM",
        settings=GATED | UNTIED | _NETS | _EXPERTS | {"norm_topk_prob": False},
        contrasts=(*_CONTRASTS, {"num_experts_per_tok": 3}, {"norm_topk_prob": True}),
    ),
}
