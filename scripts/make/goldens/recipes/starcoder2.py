"""StarCoder2, with a window."""

from scripts.make.goldens.recipes.common import GROUPED, OTHER_ROPE, TIED, WINDOW
from scripts.make.goldens.variant import Variant

VARIANTS = {
    "starcoder2": Variant(
        architecture="Starcoder2ForCausalLM",
        settings=GROUPED | TIED | {"norm_epsilon": 0.01, "sliding_window": WINDOW},
        contrasts=(
            *({"norm_epsilon": 1e-6}, {"hidden_act": "relu"}, {"use_bias": False}),
            *({"sliding_window": WINDOW + 1}, {"sliding_window": None}, OTHER_ROPE),
        ),
    )
}
