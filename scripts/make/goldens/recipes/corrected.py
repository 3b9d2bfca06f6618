"""Experts that are chosen by corrected scores: GLM-4.5, dots.llm1, ERNIE 4.5."""

from typing import Any

from scripts.make.goldens.recipes.common import FULL, GATED, OF_GATED, OTHER_ACT, OTHER_EPS, SLIDING, TIED, WINDOW, rope
from scripts.make.goldens.variant import Variant

_EXPERTS: dict[str, Any] = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
}
_OF_EXPERTS = ({"num_experts_per_tok": 3}, {"routed_scaling_factor": 1.0}, {"norm_topk_prob": False})
_HALF = rope(partial_rotary_factor=0.5)
_ERNIE = {
    "moe_num_experts": 6,
    "moe_k": 2,
    "moe_intermediate_size": 24,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
}

VARIANTS = {
    "glm4_moe": Variant(
        architecture="Glm4MoeForCausalLM",
        settings=GATED
        | _EXPERTS
        | {"head_dim": 16, "use_qk_norm": True, "attention_bias": True, "rope_parameters": _HALF},
        contrasts=(
            OTHER_EPS,
            OTHER_ACT,
            {"rope_parameters": _HALF | {"rope_theta": 10_000.0}},
            *_OF_EXPERTS,
            {"use_qk_norm": False},
            {"attention_bias": False},
        ),
    ),
    "dots1": Variant(
        architecture="Dots1ForCausalLM",
        settings=GATED
        | _EXPERTS
        | {"head_dim": 12, "sliding_window": WINDOW, "layer_types": [FULL, SLIDING], "max_window_layers": 1},
        contrasts=(*OF_GATED, *_OF_EXPERTS, {"sliding_window": WINDOW + 1}),
    ),
    "ernie4_5_moe": Variant(
        architecture="Ernie4_5_MoeForCausalLM",
        settings=GATED | _ERNIE | TIED,
        contrasts=(*OF_GATED, {"moe_k": 3}),
    ),
}
