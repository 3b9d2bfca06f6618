"""LFM2: short convolutions and attention in layers of their own; with biases, a wider filter and a head of its own; and
with experts in all but the first layer."""

from functools import partial

from scripts.make.goldens.recipes.common import FULL, GROUPED, OTHER_ROPE, TIED, UNTIED
from scripts.make.goldens.spelling import Spelling
from scripts.make.goldens.variant import Variant

CONV = "conv"
_LAYERS = {"num_hidden_layers": 5, "layer_types": [CONV, FULL, CONV, FULL, CONV]}
_LFM2 = GROUPED | _LAYERS | {"norm_eps": 0.01, "conv_L_cache": 3}
_lfm2 = partial(Variant, architecture="Lfm2ForCausalLM")
_CONTRASTS = ({"norm_eps": 1e-6}, OTHER_ROPE)
_MOE = {"num_dense_layers": 1, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_SCALED = {"routed_scaling_factor": 1.5, "norm_topk_prob": True}

VARIANTS = {
    "lfm2": _lfm2(
        settings=_LFM2 | TIED | {"intermediate_size": 72, "block_multiple_of": 16, "block_ffn_dim_multiplier": 0.9},
        contrasts=_CONTRASTS,
        spelling=Spelling(
            old=True,
            drop=("tie_word_embeddings",),
            names={"intermediate_size": "block_ff_dim"},
            add={"full_attn_idxs": [1, 3], "tie_embedding": True},
        ),
    ),
    "lfm2_bias": _lfm2(
        settings=_LFM2 | UNTIED | {"conv_bias": True, "conv_L_cache": 4, "block_auto_adjust_ff_dim": False},
        contrasts=(*_CONTRASTS, {"conv_bias": False}),
    ),
    "lfm2_moe": Variant(
        architecture="Lfm2MoeForCausalLM",
        settings=_LFM2 | TIED | _MOE | _SCALED | {"num_hidden_layers": 3, "layer_types": [CONV, FULL, CONV]},
        contrasts=(
            *_CONTRASTS,
            {"num_experts_per_tok": 3},
            {"routed_scaling_factor": 1.0},
            {"norm_topk_prob": False},
            {"use_expert_bias": False},
        ),
    ),
}
