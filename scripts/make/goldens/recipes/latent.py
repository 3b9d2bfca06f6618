"""Latent attention: DeepSeek-V2 and -V3, GLM-4.7-Flash."""

from functools import partial
from typing import Any

from scripts.make.goldens.recipes.common import GATED, OTHER_ACT, OTHER_EPS, OTHER_ROPE, TIED, rope, ropes
from scripts.make.goldens.spelling import Spelling
from scripts.make.goldens.variant import Variant

_YARN = rope(
    kind="yarn",
    factor=4.0,
    original_max_position_embeddings=32,
    beta_fast=2.0,
    beta_slow=0.25,
    mscale=0.8,
    mscale_all_dim=1.2,
)
_OF_YARN = ropes(_YARN, {"rope_theta": 500.0}, {"factor": 8.0}, {"mscale": 0.4}, {"mscale_all_dim": 0.6})
_LATENT: dict[str, Any] = GATED | {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": None,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
_QUERIES = {"q_lora_rank": 20}
_EXPERTS: dict[str, Any] = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.5,
}
_GROUPS = {"n_routed_experts": 8, "n_group": 4, "topk_group": 2}
_FIRST_DENSE = {"first_k_dense_replace": 1}
_OF_EXPERTS = ({"num_experts_per_tok": 3}, {"routed_scaling_factor": 1.0})
_OF_GROUPS = ({"topk_group": 1, "num_experts_per_tok": 1}, {"n_group": 2, "topk_group": 1})
_ONE_GROUP = {"n_group": 1, "topk_group": 1}
_v2 = partial(Variant, architecture="DeepseekV2ForCausalLM")

VARIANTS = {
    "deepseek_v2": _v2(
        settings=_LATENT | _EXPERTS | _FIRST_DENSE | {"rope_parameters": _YARN},
        contrasts=(OTHER_EPS, OTHER_ACT, *_OF_YARN, *_OF_EXPERTS),
        spelling=Spelling(old=True, drop=("head_dim",), add={"scoring_func": "softmax", "moe_layer_freq": 1}),
    ),
    "deepseek_v2_groups": _v2(
        settings=_LATENT | _EXPERTS | _QUERIES | TIED | _GROUPS | {"topk_method": "group_limited_greedy"},
        contrasts=(OTHER_EPS, OTHER_ACT, OTHER_ROPE, *_OF_EXPERTS, *_OF_GROUPS),
    ),
    "deepseek_v3": Variant(
        architecture="DeepseekV3ForCausalLM",
        settings=_LATENT | _EXPERTS | _QUERIES | _GROUPS | _FIRST_DENSE | {"rope_parameters": _YARN},
        contrasts=(OTHER_EPS, OTHER_ACT, *_OF_YARN, *_OF_EXPERTS, *_OF_GROUPS, {"norm_topk_prob": False}),
    ),
    "glm4_moe_lite": Variant(
        architecture="Glm4MoeLiteForCausalLM",
        settings=_LATENT | _EXPERTS | _QUERIES | _ONE_GROUP,
        contrasts=(OTHER_EPS, OTHER_ACT, OTHER_ROPE, *_OF_EXPERTS, {"norm_topk_prob": False}),
        shard_size="40KB",
    ),
}
