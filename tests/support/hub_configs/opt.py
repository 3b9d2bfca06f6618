"""Configurations of OPT."""

from tests.support.hub_configs.fields import COMMON, Model

MODELS: dict[str, Model] = {
    "opt-125m": (
        {"architectures": ["OPTForCausalLM"], "_remove_final_layer_norm": False}
        | COMMON
        | {
            "activation_dropout": 0.0,
            "activation_function": "relu",
            "attention_dropout": 0.0,
            "do_layer_norm_before": True,
            "dropout": 0.1,
            "ffn_dim": 3072,
            "hidden_size": 768,
            "init_std": 0.02,
            "layerdrop": 0.0,
            "max_position_embeddings": 2048,
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
            "prefix": "</s>",
            "torch_dtype": "float16",
            "vocab_size": 50_272,
            "word_embed_proj_dim": 768,
        },
        "125.2 M",
    ),
}
