"""Configurations of OLMo 2 and 3."""

from tests.support.hub_configs.fields import FULL, SLIDING, YARN, Model, gated, turns

MODELS: dict[str, Model] = {
    "OLMo-2-0425-1B": (
        gated(
            *("Olmo2ForCausalLM", 100_352, 2048, 8192, 16, 16, 16),
            context=4096,
            attention_bias=False,
            rope_theta=500_000,
        ),
        "1.5 B",
    ),
    "Olmo-3-7B": (
        gated(
            *("Olmo3ForCausalLM", 100_278, 4096, 11_008, 32, 32, 32),
            context=65_536,
            attention_bias=False,
            layer_types=turns([SLIDING] * 3 + [FULL], 32),
            rope_scaling=YARN | {"attention_factor": 1.2079, "factor": 8.0, "original_max_position_embeddings": 8192},
            rope_theta=500_000,
            sliding_window=4096,
        ),
        "7.3 B",
    ),
}
