"""Nemotron, with all biases."""

from scripts.make.goldens.recipes.common import GROUPED, UNTIED, rope, ropes
from scripts.make.goldens.variant import Variant

_ROPE = rope(partial_rotary_factor=0.5)

VARIANTS = {
    "nemotron": Variant(
        architecture="NemotronForCausalLM",
        settings=GROUPED
        | UNTIED
        | {"norm_eps": 0.01, "rope_parameters": _ROPE, "attention_bias": True, "mlp_bias": True, "head_dim": 12},
        contrasts=(
            *({"norm_eps": 1e-6}, {"hidden_act": "relu"}, {"attention_bias": False}, {"mlp_bias": False}),
            *ropes(_ROPE, {"rope_theta": 10_000.0}, {"partial_rotary_factor": 1.0}),
        ),
        norm_about_one=False,
    )
}
