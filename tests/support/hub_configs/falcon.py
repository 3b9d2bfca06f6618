"""Configurations of Falcon."""

from tests.support.hub_configs.fields import COMMON, Config, Model

_FALCON: Config = COMMON | {
    "architectures": ["FalconForCausalLM"],
    "alibi": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_falcon.FalconConfig"},
    "bias": False,
    "hidden_dropout": 0.0,
    "layer_norm_epsilon": 1e-05,
    "multi_query": True,
    "parallel_attn": True,
    "vocab_size": 65_024,
}

MODELS: dict[str, Model] = {
    "falcon-7b": (
        _FALCON
        | {"apply_residual_connection_post_layernorm": False, "new_decoder_architecture": False}
        | {"hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32},
        "6.9 B",
    ),
    "falcon-11B": (
        _FALCON
        | {"new_decoder_architecture": True, "num_kv_heads": 8, "num_ln_in_parallel_attn": 1}
        | {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 60}
        | {"activation": "gelu", "ff_factor": 4, "ffn_hidden_size": 16_384, "max_position_embeddings": 8192}
        | {"rope_scaling": None, "rope_theta": 500_042.0, "tie_word_embeddings": False},
        "11.1 B",
    ),
}
