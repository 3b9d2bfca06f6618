"""Configurations of Llama."""

from tests.support.hub_configs.fields import Model, gated

MODELS: dict[str, Model] = {
    "Llama-3.1-8B": (
        gated(
            *("LlamaForCausalLM", 128_256, 4096, 14_336, 32, 32, 8),
            eps=1e-5,
            context=131_072,
            attention_bias=False,
            mlp_bias=False,
            pretraining_tp=1,
            rope_theta=500_000.0,
            rope_scaling={
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        ),
        "8.0 B",
    ),
}
