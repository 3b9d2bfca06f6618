"""OLMo, Granite, GLM-4, Falcon, Phi-2 and GPT-NeoX."""

from functools import partial
from typing import Any

from scripts.make.goldens.recipes.common import (
    FULL,
    GATED,
    LAYERS,
    OF_GATED,
    OF_LAYERS,
    OF_YARN,
    OTHER_ACT,
    OTHER_EPS,
    OTHER_ROPE,
    ROPE,
    SLIDING,
    TIED,
    TINY,
    UNTIED,
    WIDE_HEADS,
    YARN,
    rope,
    ropes,
)
from scripts.make.goldens.spelling import Spelling
from scripts.make.goldens.variant import Tensors, Variant

_WITHOUT_BIAS = {"attention_bias": False}


def _by_layer(full: dict[str, Any], theta: float, *changes: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return settings of yarn in full attention and a plain rope in windows, and contrasts with some changed."""
    return tuple({"rope_parameters": {FULL: full | change, SLIDING: rope(theta)}} for change in ({}, *changes))


_BY_LAYER, *_OF_BY_LAYER = _by_layer(YARN, 1000.0, *OF_YARN)
# transformers reads a base of the old spelling for full attention alone, and takes the usual one for windows.
_USUAL = YARN | {"rope_theta": 500_000.0, "beta_fast": 0.9, "beta_slow": 0.1}
_OLD_BY_LAYER, *_OF_OLD_BY_LAYER = _by_layer(
    _USUAL, 500_000.0, {"factor": 8.0}, {"beta_fast": 32.0}, {"beta_slow": 1.0}, {"attention_factor": 1.0}
)
_olmo3 = partial(Variant, architecture="Olmo3ForCausalLM")

OLMO = {
    "olmo2": Variant(
        architecture="Olmo2ForCausalLM",
        settings=GATED | {"num_key_value_heads": 4},
        contrasts=OF_GATED,
        spelling=Spelling(old=True),
    ),
    "olmo3": _olmo3(
        settings=GATED | LAYERS | WIDE_HEADS | _BY_LAYER | {"attention_bias": True},
        contrasts=(
            OTHER_EPS,
            OTHER_ACT,
            *OF_LAYERS,
            *_OF_BY_LAYER,
            {"rope_parameters": {FULL: YARN, SLIDING: YARN}},
            _WITHOUT_BIAS,
        ),
    ),
    "olmo3_old": _olmo3(
        settings=GATED | LAYERS | WIDE_HEADS | TIED | _OLD_BY_LAYER,
        contrasts=(OTHER_EPS, OTHER_ACT, *OF_LAYERS, *_OF_OLD_BY_LAYER),
        spelling=Spelling(old=True, add={"layer_types": LAYERS["layer_types"]}),
    ),
}

_MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.2,
    "logits_scaling": 2.0,
}
_OF_GRANITE: tuple[dict[str, Any], ...] = (*OF_GATED, *({name: 1.0} for name in _MULTIPLIERS))
_granite = partial(Variant, architecture="GraniteForCausalLM")

GRANITE = {
    "granite": _granite(
        settings=GATED | _MULTIPLIERS | TIED | {"vocab_size": 131},
        embedding=0.7,
        least_gap=2e-3,
        contrasts=_OF_GRANITE,
        spelling=Spelling(old=True),
    ),
    "granite_bias": _granite(
        settings=GATED | _MULTIPLIERS | UNTIED | {"attention_bias": True, "mlp_bias": True},
        contrasts=(*_OF_GRANITE, _WITHOUT_BIAS, {"mlp_bias": False}),
    ),
}

_HYBRID = {
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "shared_intermediate_size": 48,
    "intermediate_size": 96,
    "layer_types": [FULL, FULL],
    "position_embedding_type": "rope",
    "mamba_n_heads": 8,
}

GRANITE4 = {
    "granite_hybrid": Variant(
        architecture="GraniteMoeHybridForCausalLM",
        settings=GATED | _MULTIPLIERS | TIED | _HYBRID,
        embedding=0.7,
        least_gap=2e-3,
        contrasts=(*_OF_GRANITE, {"position_embedding_type": None}),
        spelling=Spelling(old=True, add={"layer_types": ["attention", "attention"], "init_method": "mup"}),
    ),
}

# Its class replaces null by ends outside this vocabulary.
_GLM4 = GATED | {"head_dim": 24, "eos_token_id": [3, 5]}
_HALF = rope(partial_rotary_factor=0.5)
_glm4 = partial(Variant, architecture="Glm4ForCausalLM")

GLM4 = {
    "glm4": _glm4(
        settings=_GLM4 | {"num_key_value_heads": 1, "attention_bias": False, "rope_parameters": _HALF},
        contrasts=(OTHER_EPS, OTHER_ACT, *ropes(_HALF, {"rope_theta": 10_000.0}, {"partial_rotary_factor": 1.0})),
        spelling=Spelling(old=True),
    ),
    "glm4_bias": _glm4(
        settings=_GLM4 | {"attention_bias": True, "rope_parameters": rope(partial_rotary_factor=0.25)},
        contrasts=(OTHER_EPS, OTHER_ACT, {"rope_parameters": _HALF}, _WITHOUT_BIAS),
    ),
}


def _with_copy_of_head(tensors: Tensors) -> Tensors:
    """The hub's file has the tied head as well as the embedding."""
    return tensors | {"lm_head.weight": tensors["transformer.word_embeddings.weight"].clone()}


_FALCON = TINY | {"layer_norm_epsilon": 0.01}
_OF_FALCON: tuple[dict[str, Any], ...] = ({"layer_norm_epsilon": 1e-5}, {"activation": "relu"})
_NEW = {"new_decoder_architecture": True, "num_kv_heads": 2}
_falcon = partial(Variant, architecture="FalconForCausalLM")

FALCON = {
    # As on the hub, most keys have their usual values and are not there.
    "falcon_7b": _falcon(
        settings=_FALCON | {"multi_query": True, "rope_parameters": rope(10_000.0)},
        contrasts=(*_OF_FALCON, {"activation": "gelu_new"}, ROPE),
        spelling=Spelling(
            old=True,
            drop=(
                "activation",
                "ffn_hidden_size",
                "max_position_embeddings",
                "num_kv_heads",
                "num_ln_in_parallel_attn",
                "rope_scaling",
                "rope_theta",
                "tie_word_embeddings",
            ),
        ),
        rewrite=_with_copy_of_head,
    ),
    "falcon_40b": _falcon(
        settings=_FALCON | ROPE | _NEW | {"ffn_hidden_size": 48, "max_position_embeddings": 128},
        contrasts=(*_OF_FALCON, OTHER_ROPE),
        spelling=Spelling(old=True, drop=("num_ln_in_parallel_attn",)),
    ),
    "falcon_11b": _falcon(
        settings=_FALCON
        | ROPE
        | _NEW
        | UNTIED
        | {"num_ln_in_parallel_attn": 1, "bias": True, "ffn_hidden_size": 48, "max_position_embeddings": 128},
        contrasts=(*_OF_FALCON, OTHER_ROPE, {"bias": False}),
    ),
}

_NEOX = TINY | {
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "layer_norm_eps": 0.01,
}
_PHI = _NEOX | {"num_key_value_heads": 2}
_OF_PHI: tuple[dict[str, Any], ...] = ({"layer_norm_eps": 1e-5}, {"hidden_act": "relu"})
_PARTLY = rope(partial_rotary_factor=0.4)
_phi = partial(Variant, architecture="PhiForCausalLM")

PHI = {
    "phi": _phi(
        settings=_PHI | {"hidden_size": 40, "rope_parameters": _PARTLY},
        contrasts=(
            *_OF_PHI,
            {"hidden_act": "gelu"},
            *ropes(_PARTLY, {"rope_theta": 10_000.0}, {"partial_rotary_factor": 0.5}),
        ),
        spelling=Spelling(old=True),
    ),
    "phi_qk": _phi(
        settings=_PHI | {"num_key_value_heads": 1, "qk_layernorm": True, "rope_parameters": _HALF},
        contrasts=(*_OF_PHI, {"qk_layernorm": False}),
    ),
}


def _neox_of_the_hub(tensors: Tensors) -> Tensors:
    """The old files have the causal mask and the frequencies of each layer."""
    result = dict(tensors)
    one = tensors["gpt_neox.final_layer_norm.weight"]
    for layer in range(2):
        prefix = f"gpt_neox.layers.{layer}.attention."
        result[prefix + "bias"] = one.new_ones(1, 1, 128, 128).tril().bool()
        result[prefix + "masked_bias"] = one.new_full((), -10_000.0)
        result[prefix + "rotary_emb.inv_freq"] = one.new_ones(2).float()
    return result


_QUARTER = rope(partial_rotary_factor=0.25)
_neox = partial(Variant, architecture="GPTNeoXForCausalLM")

NEOX = {
    "gpt_neox": _neox(
        settings=_NEOX | {"rope_parameters": _QUARTER},
        contrasts=(
            *_OF_PHI,
            {"hidden_act": "gelu_new"},
            {"use_parallel_residual": False},
            *ropes(_QUARTER, {"rope_theta": 10_000.0}, {"partial_rotary_factor": 0.5}),
        ),
        dtype="float16",
        spelling=Spelling(
            old=True,
            names={"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
            drop=("rope_scaling", "attention_bias"),
        ),
        rewrite=_neox_of_the_hub,
    ),
    "gpt_neox_sequential": _neox(
        settings=_NEOX | TIED | {"use_parallel_residual": False, "attention_bias": False, "rope_parameters": _HALF},
        contrasts=(*_OF_PHI, {"use_parallel_residual": True}, {"rope_parameters": _QUARTER}),
    ),
}

VARIANTS = OLMO | GRANITE | GRANITE4 | GLM4 | FALCON | PHI | NEOX
