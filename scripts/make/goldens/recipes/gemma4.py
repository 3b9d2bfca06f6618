"""Gemma 4: with experts next to the MLP; dense, as the older files of the hub spell it; and with embeddings for each
layer, and layers that read the keys and values of others."""

from functools import partial
from typing import Any

from scripts.make.goldens.recipes.common import FULL, GATED, OTHER_EPS, SLIDING, TIED, UNTIED, WINDOW, rope, ropes
from scripts.make.goldens.spelling import Spelling
from scripts.make.goldens.variant import Variant

_ROPES = {FULL: rope(50_000.0, "proportional", partial_rotary_factor=0.5), SLIDING: rope(1000.0)}
_OF_ROPES = ropes(
    _ROPES,
    {FULL: rope(50_000.0)},
    {FULL: rope(10_000.0, "proportional", partial_rotary_factor=0.5)},
    {FULL: rope(50_000.0, "proportional", partial_rotary_factor=0.25)},
    {SLIDING: rope(10_000.0)},
)
_TEXT: dict[str, Any] = GATED | {
    "num_hidden_layers": 3,
    "layer_types": [SLIDING, SLIDING, FULL],
    "sliding_window": WINDOW,
    "rope_parameters": _ROPES,
    "head_dim": 8,
    "global_head_dim": 16,
    "final_logit_softcapping": 5.0,
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
}
_ONE_KEY = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
_EXPERTS = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24}
_CONTRASTS: tuple[dict[str, Any], ...] = (
    OTHER_EPS,
    {"sliding_window": WINDOW + 1},
    {"final_logit_softcapping": None},
    {"hidden_activation": "silu"},
    *_OF_ROPES,
)
_gemma4 = partial(Variant, architecture="Gemma4ForCausalLM", embedding=0.5, least_gap=2e-3, norm_about_one=False)

VARIANTS = {
    "gemma4_moe": _gemma4(
        settings=_TEXT | TIED | _ONE_KEY | _EXPERTS | {"num_hidden_layers": 2, "layer_types": [SLIDING, FULL]},
        contrasts=(*_CONTRASTS, {"top_k_experts": 3}),
    ),
    "gemma4_unified": _gemma4(
        architecture="Gemma4UnifiedForCausalLM",
        settings=_TEXT | UNTIED | {"attention_bias": True, "num_global_key_value_heads": 1},
        contrasts=(*_CONTRASTS, {"attention_bias": False}),
        spelling=Spelling(drop=("per_layer_config",), add={"global_head_dim": 16, "num_global_key_value_heads": None}),
    ),
    "gemma4_shared": _gemma4(
        settings=_TEXT
        | TIED
        | {
            "num_hidden_layers": 5,
            "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL],
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 12,
            "vocab_size_per_layer_input": 128,
            "use_double_wide_mlp": True,
        },
        contrasts=_CONTRASTS,
    ),
}
