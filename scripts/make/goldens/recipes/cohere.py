"""Command-R, and Command-R+ with a norm of each head."""

from functools import partial

from scripts.make.goldens.recipes.common import GROUPED, OTHER_ACT, OTHER_ROPE, TIED
from scripts.make.goldens.spelling import Spelling
from scripts.make.goldens.variant import Variant

_SETTINGS = GROUPED | TIED | {"layer_norm_eps": 0.01, "logit_scale": 0.5}
_OF_COHERE = ({"layer_norm_eps": 1e-6}, {"logit_scale": 0.25}, OTHER_ACT, OTHER_ROPE)
_cohere = partial(Variant, architecture="CohereForCausalLM", embedding=0.5)

VARIANTS = {
    "cohere": _cohere(
        settings=_SETTINGS | {"attention_bias": True},
        contrasts=(*_OF_COHERE, {"attention_bias": False}),
        spelling=Spelling(old=True, add={"model_max_length": 128}),
    ),
    "cohere_heads": _cohere(
        settings=_SETTINGS | {"use_qk_norm": True}, contrasts=(*_OF_COHERE, {"use_qk_norm": False})
    ),
}
