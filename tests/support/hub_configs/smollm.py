"""Configurations of SmolLM 2 and 3."""

from tests.support.hub_configs.fields import FULL, Model, gated, turns

MODELS: dict[str, Model] = {
    "SmolLM2-135M-Instruct": (
        gated(
            *("LlamaForCausalLM", 49_152, 576, 1536, 30, 9, 3),
            eps=1e-5,
            tied=True,
            context=8192,
            is_llama_config=True,
            pretraining_tp=1,
            rope_interleaved=False,
            rope_theta=100_000,
        )
        | {"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}}},
        "134.5 M",
    ),
    "SmolLM3-3B": (
        gated(
            *("SmolLM3ForCausalLM", 128_256, 2048, 11_008, 36, 16, 4),
            tied=True,
            context=65_536,
            attention_bias=False,
            layer_types=[FULL] * 36,
            max_window_layers=28,
            mlp_bias=False,
            no_rope_layer_interval=4,
            no_rope_layers=turns([1, 1, 1, 0], 36),
            pretraining_tp=2,
            rope_theta=5_000_000.0,
            sliding_window=None,
            use_sliding_window=False,
        ),
        "3.1 B",
    ),
}
