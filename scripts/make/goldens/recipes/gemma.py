"""Gemma 2 and 3, alone and as the text part of a multimodal checkpoint."""

import re
from functools import partial
from typing import Any

from scripts.make.goldens.recipes.common import (
    FULL,
    GATED,
    LAYERS,
    OF_LAYERS,
    OTHER_EPS,
    OTHER_ROPE,
    SLIDING,
    WINDOW,
    rope,
    ropes,
)
from scripts.make.goldens.spelling import Spelling
from scripts.make.goldens.variant import Settings, Tensors, Variant

_GEMMA = GATED | {"head_dim": 12, "query_pre_attn_scalar": 20, "sliding_window": WINDOW}
_CAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 5.0}
_OF_GEMMA: tuple[dict[str, Any], ...] = (
    OTHER_EPS,
    {"hidden_activation": "silu"},
    {"query_pre_attn_scalar": 12},
    *OF_LAYERS,
)
_OF_CAPS: tuple[dict[str, Any], ...] = tuple({name: value} for name in _CAPS for value in (None, 6.0))
_HUB = {"cache_implementation": "hybrid"}
_gemma2 = partial(Variant, architecture="Gemma2ForCausalLM", embedding=0.5, norm_about_one=False)

GEMMA2 = {
    "gemma2": _gemma2(
        settings=_GEMMA | _CAPS,
        contrasts=(*_OF_GEMMA, *_OF_CAPS, OTHER_ROPE),
        spelling=Spelling(old=True, add={"hidden_act": "gelu_pytorch_tanh", **_HUB}),
    ),
    "gemma2_bias": _gemma2(
        settings=_GEMMA | dict.fromkeys(_CAPS) | {"attention_bias": True},
        contrasts=(*_OF_GEMMA, {"attention_bias": False}, OTHER_ROPE, *({name: 5.0} for name in _CAPS)),
    ),
}

_ROPES = {FULL: rope(50_000.0, "linear", factor=8.0), SLIDING: rope(1000.0)}
_OF_ROPES = ropes(
    _ROPES,
    {FULL: rope(50_000.0)},
    {FULL: rope(50_000.0, "linear", factor=4.0)},
    {FULL: rope(10_000.0, "linear", factor=8.0)},
    {SLIDING: rope(10_000.0)},
    {SLIDING: rope(1000.0, "linear", factor=8.0)},
)
_TEXT = _GEMMA | LAYERS | {"query_pre_attn_scalar": 4, "rope_parameters": _ROPES}
_OF_TEXT = (*_OF_GEMMA, *_OF_ROPES)
_OLD = Spelling(old=True, add={"sliding_window_pattern": 2, **_HUB})
_VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
    "vision_use_head": False,
}


def _wrapped(text: Settings, contrasts: tuple[Settings, ...], **more: Any) -> Variant:
    """Return the multimodal class around a text model. The keys of its ends are the text model's."""
    return Variant(
        architecture="Gemma3ForConditionalGeneration",
        embedding=0.5,
        least_gap=2e-3,
        norm_about_one=False,
        settings={"text_config": text, "vision_config": _VISION, "mm_tokens_per_image": 4},
        contrasts=tuple({"text_config": contrast} for contrast in contrasts),
        **more,
    )


def _new_prefixes(tensors: Tensors) -> Tensors:
    """The names of the classes of transformers 5; it saves those of the hub's first checkpoints."""
    text = re.compile(r"^language_model\.model\.")
    others = re.compile(r"^(vision_tower|multi_modal_projector)\.")
    return {
        others.sub(r"model.\1.", text.sub("model.language_model.", name)): tensor for name, tensor in tensors.items()
    }


GEMMA3 = {
    # The window in the second layer, whose kind the old spelling tells by a pattern; here layers are listed.
    "gemma3": Variant(
        architecture="Gemma3ForCausalLM",
        embedding=0.5,
        least_gap=2e-3,
        norm_about_one=False,
        settings=_TEXT | {"layer_types": [FULL, SLIDING], "attention_bias": True, "final_logit_softcapping": 5.0},
        contrasts=(
            *_OF_GEMMA[:-1],
            *_OF_ROPES,
            {"layer_types": [SLIDING, FULL]},
            {"attention_bias": False},
            {"final_logit_softcapping": None},
        ),
    ),
    "gemma3_wrapped_old": _wrapped(_TEXT, _OF_TEXT, spelling=_OLD),
    "gemma3_wrapped": _wrapped(_TEXT | {"num_key_value_heads": 1}, _OF_TEXT, rewrite=_new_prefixes),
}

VARIANTS = GEMMA2 | GEMMA3
