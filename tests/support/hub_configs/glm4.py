"""Configurations of GLM-4."""

from tests.support.hub_configs.fields import Model, gated

MODELS: dict[str, Model] = {
    "GLM-4-9B-0414": (
        gated(
            *("Glm4ForCausalLM", 151_552, 4096, 13_696, 40, 32, 2),
            eps=1e-5,
            attention_bias=False,
            head_dim=128,
            partial_rotary_factor=0.5,
            rope_theta=10_000.0,
        ),
        "9.4 B",
    ),
}
