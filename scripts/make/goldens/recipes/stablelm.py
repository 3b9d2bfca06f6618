"""StableLM: the form of the small models, and that of the 12B with norms of each head."""

from functools import partial
from typing import Any

from scripts.make.goldens.recipes.common import GROUPED, OTHER_ACT, UNTIED, rope, ropes
from scripts.make.goldens.spelling import Spelling
from scripts.make.goldens.variant import Variant

_ROPE = rope(partial_rotary_factor=0.5)
_SETTINGS = GROUPED | UNTIED | {"layer_norm_eps": 0.01, "rope_parameters": _ROPE}
_OF_STABLELM: tuple[dict[str, Any], ...] = (
    *({"layer_norm_eps": 1e-6}, OTHER_ACT),
    *ropes(_ROPE, {"rope_theta": 10_000.0}, {"partial_rotary_factor": 1.0}),
)
_stablelm = partial(Variant, architecture="StableLmForCausalLM")

VARIANTS = {
    "stablelm": _stablelm(
        settings=_SETTINGS | {"use_qkv_bias": True},
        contrasts=(*_OF_STABLELM, {"use_qkv_bias": False}),
        spelling=Spelling(old=True),
    ),
    "stablelm_heads": _stablelm(
        settings=_SETTINGS | {"qk_layernorm": True, "use_parallel_residual": True},
        contrasts=(*_OF_STABLELM, {"use_parallel_residual": False}, {"qk_layernorm": False}),
    ),
}
