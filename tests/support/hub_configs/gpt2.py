"""Configurations of GPT-2."""

from tests.support.hub_configs.fields import Config, Model

_GPT2: Config = {
    "activation_function": "gelu_new",
    "attn_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "layer_norm_epsilon": 1e-05,
    "n_ctx": 1024,
    "n_positions": 1024,
    "n_special": 0,
    "predict_special_tokens": True,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50_257,
}

MODELS: dict[str, Model] = {
    "gpt2-medium": (
        {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "initializer_range": 0.02}
        | _GPT2
        | {"n_embd": 1024, "n_head": 16, "n_layer": 24},
        "354.8 M",
    ),
}
