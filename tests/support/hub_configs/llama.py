"""Configurations of Llama."""

from typing import Any

from tests.support.hub_configs.fields import Config, Model, gated


def _llama_3(*sizes: int, factor: float, **fields: Any) -> Config:
    """``sizes`` from the vocabulary on, as ``gated`` has them. ``factor``: of the rope's scaling."""
    return gated(
        *("LlamaForCausalLM", *sizes),
        eps=1e-5,
        context=131_072,
        attention_bias=False,
        mlp_bias=False,
        pretraining_tp=1,
        rope_theta=500_000.0,
        rope_scaling={
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        **fields,
    )


MODELS: dict[str, Model] = {
    "Llama-3.1-8B": (_llama_3(128_256, 4096, 14_336, 32, 32, 8, factor=8.0), "8.0 B"),
    "Llama-3.2-1B": (
        _llama_3(128_256, 2048, 8192, 16, 32, 8, factor=32.0, head_dim=64, tie_word_embeddings=True),
        "1.2 B",
    ),
}
