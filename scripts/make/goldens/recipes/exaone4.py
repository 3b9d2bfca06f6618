"""EXAONE 4: with windows, of which a pattern says where, and without."""

from functools import partial

from scripts.make.goldens.recipes.common import FULL, GATED, LAYERS, OF_GATED, OF_LAYERS, UNTIED
from scripts.make.goldens.spelling import Spelling
from scripts.make.goldens.variant import Variant

_exaone4 = partial(Variant, architecture="Exaone4ForCausalLM")

VARIANTS = {
    "exaone4": _exaone4(
        settings=GATED | LAYERS | {"head_dim": 12},
        contrasts=(*OF_GATED, *OF_LAYERS, {"layer_types": [FULL, FULL]}),
        spelling=Spelling(old=True, add={"sliding_window_pattern": 2}),
    ),
    "exaone4_full": _exaone4(
        settings=GATED | UNTIED | {"sliding_window": None, "layer_types": [FULL, FULL]}, contrasts=OF_GATED
    ),
}
