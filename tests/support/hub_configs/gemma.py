"""Configurations of Gemma 2 and 3."""

from tests.support.hub_configs.fields import COMMON, FULL, SLIDING, Config, Model, sizes, turns

_GEMMA3_OUTER: Config = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "boi_token_index": 255_999,
    "eoi_token_index": 256_000,
    "eos_token_id": [1, 106],
    "image_token_index": 262_144,
    "initializer_range": 0.02,
    "mm_tokens_per_image": 256,
    "model_type": "gemma3",
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model", "vision_use_head": False},
}
_GEMMA3_TEXT: Config = {
    "model_type": "gemma3_text",
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}
_GEMMA: Config = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "cache_implementation": "hybrid",
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
}

MODELS: dict[str, Model] = {
    "gemma-2-9b": (
        {"architectures": ["Gemma2ForCausalLM"]}
        | COMMON
        | _GEMMA
        | sizes(256_000, 3584, 14_336, 42, 16, 8)
        | {
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "hidden_act": "gelu_pytorch_tanh",
            "max_position_embeddings": 8192,
            "rope_theta": 10_000.0,
            "sliding_window": 4096,
            "sliding_window_size": 4096,
        },
        "9.2 B",
    ),
    "gemma-3-1b-it": (
        {"architectures": ["Gemma3ForCausalLM"]}
        | COMMON
        | _GEMMA
        | sizes(262_144, 1152, 6912, 26, 4, 1)
        | {
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "max_position_embeddings": 32_768,
            "rope_local_base_freq": 10_000,
            "rope_scaling": None,
            "rope_theta": 1_000_000,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
        },
        "1.0 B",
    ),
    "gemma-3-270m-it": (
        {"architectures": ["Gemma3ForCausalLM"]}
        | COMMON
        | _GEMMA
        | sizes(262_144, 640, 2048, 18, 4, 1)
        | {
            "_sliding_window_pattern": 6,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "layer_types": turns([*[SLIDING] * 5, FULL], 18),
            "max_position_embeddings": 32_768,
            "model_type": "gemma3_text",
            "rope_local_base_freq": 10_000.0,
            "rope_scaling": None,
            "rope_theta": 1_000_000.0,
            "sliding_window": 512,
            "use_bidirectional_attention": False,
        },
        "268.1 M",
    ),
    # The text of these says only what differs from a class's defaults.
    "gemma-3-4b-it": (
        _GEMMA3_OUTER
        | {"text_config": _GEMMA3_TEXT | {"hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34}},
        "3.9 B",
    ),
    "gemma-3-12b-it": (
        _GEMMA3_OUTER
        | {
            "text_config": _GEMMA3_TEXT
            | {"hidden_size": 3840, "intermediate_size": 15_360, "num_hidden_layers": 48}
            | {"num_attention_heads": 16, "num_key_value_heads": 8}
        },
        "11.8 B",
    ),
}
