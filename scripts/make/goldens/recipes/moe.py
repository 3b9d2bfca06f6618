"""Mixtures of experts: Mixtral, Qwen 2 and 3, gpt-oss."""

from functools import partial
from typing import Any

from scripts.make.goldens.recipes.common import (
    GATED,
    LAYERS,
    OF_GATED,
    OF_LAYERS,
    OF_SECOND_LAYER,
    OF_YARN,
    OTHER_ACT,
    OTHER_EPS,
    TIED,
    WIDE_HEADS,
    WINDOW,
    YARN,
    on_second_layer,
    rope,
    ropes,
)
from scripts.make.goldens.spelling import Spelling
from scripts.make.goldens.variant import Variant

_MORE_A_TOKEN = {"num_experts_per_tok": 3}
_EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 24}
_mixtral = partial(Variant, architecture="MixtralForCausalLM")

MIXTRAL = {
    "mixtral": _mixtral(
        settings=GATED | _EXPERTS | {"sliding_window": None},
        contrasts=(*OF_GATED, _MORE_A_TOKEN, {"sliding_window": WINDOW}),
        spelling=Spelling(old=True, drop=("head_dim",)),
    ),
    "mixtral_window": _mixtral(
        settings=GATED | _EXPERTS | TIED | {"head_dim": 12, "sliding_window": WINDOW},
        contrasts=(*OF_GATED, _MORE_A_TOKEN, {"sliding_window": WINDOW + 1}),
    ),
}

_QWEN_EXPERTS = GATED | {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_SHARED = {"shared_expert_intermediate_size": 40}
_qwen2 = partial(Variant, architecture="Qwen2MoeForCausalLM")
_qwen3 = partial(Variant, architecture="Qwen3MoeForCausalLM")

QWEN = {
    "qwen2_moe": _qwen2(
        settings=_QWEN_EXPERTS | _SHARED | {"norm_topk_prob": False},
        contrasts=(*OF_GATED, _MORE_A_TOKEN, {"norm_topk_prob": True}, {"qkv_bias": False}),
        spelling=Spelling(old=True, drop=("qkv_bias",), add={"sliding_window": WINDOW, "max_window_layers": 1}),
    ),
    # Its window is in the even layers below max_window_layers, not in those from there on as in Qwen2.
    "qwen2_moe_window": _qwen2(
        settings=_QWEN_EXPERTS
        | _SHARED
        | TIED
        | {"norm_topk_prob": True, "qkv_bias": False, "decoder_sparse_step": 2}
        | on_second_layer(WINDOW),
        contrasts=(
            *OF_GATED,
            _MORE_A_TOKEN,
            {"norm_topk_prob": False},
            *OF_SECOND_LAYER,
        ),
    ),
    "qwen3_moe": _qwen3(
        settings=_QWEN_EXPERTS | {"head_dim": 12, "norm_topk_prob": True},
        contrasts=(*OF_GATED, _MORE_A_TOKEN, {"norm_topk_prob": False}),
        shard_size="40KB",
        spelling=Spelling(old=True, names={"num_local_experts": "num_experts"}),
    ),
    "qwen3_moe_window": _qwen3(
        settings=_QWEN_EXPERTS
        | TIED
        | {"head_dim": 16, "norm_topk_prob": False, "attention_bias": True, "mlp_only_layers": [1]}
        | {"use_sliding_window": True, "sliding_window": WINDOW, "rope_parameters": YARN},
        contrasts=(
            OTHER_EPS,
            OTHER_ACT,
            *ropes(YARN, *OF_YARN),
            _MORE_A_TOKEN,
            {"norm_topk_prob": True},
            {"attention_bias": False},
            {"sliding_window": WINDOW + 1},
            {"use_sliding_window": False},
        ),
    ),
}

_UNROUNDED = YARN | {"truncate": False}
_GPT_OSS = (
    GATED
    | _EXPERTS
    | LAYERS
    | {"head_dim": 16, "rope_parameters": _UNROUNDED, "swiglu_limit": 7.0, "swiglu_alpha": 1.702}
)
_OF_GPT_OSS: tuple[dict[str, Any], ...] = (
    OTHER_EPS,
    *OF_LAYERS,
    *ropes(_UNROUNDED, *OF_YARN, {"truncate": True}),
    _MORE_A_TOKEN,
    {"swiglu_limit": 2.0},
    {"swiglu_alpha": 1.5},
)
_gpt_oss = partial(Variant, architecture="GptOssForCausalLM", inputs_first=True)
_PLAIN = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
_MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": _PLAIN}

GPT_OSS = {
    "gpt_oss": _gpt_oss(settings=_GPT_OSS, contrasts=(*_OF_GPT_OSS, {"attention_bias": False})),
    # Two groups of 32 inputs in each product; what the configuration does not say has its usual value.
    "gpt_oss_mxfp4": _gpt_oss(
        settings=_GPT_OSS
        | WIDE_HEADS
        | {"hidden_size": 64, "intermediate_size": 64, "num_local_experts": 4}
        | {"rope_parameters": _UNROUNDED | rope(150_000.0, "yarn"), "swiglu_limit": 7.0, "swiglu_alpha": 1.702},
        contrasts=(OTHER_EPS, *OF_LAYERS, _MORE_A_TOKEN, {"swiglu_limit": 2.0}),
        mxfp4=True,
        spelling=Spelling(
            old=True,
            drop=("swiglu_alpha",),
            add={
                "quantization_config": _MXFP4,
                "layer_types": LAYERS["layer_types"],
                "initial_context_length": 32,
                "experts_per_token": 2,
            },
        ),
    ),
}

VARIANTS = MIXTRAL | QWEN | GPT_OSS
