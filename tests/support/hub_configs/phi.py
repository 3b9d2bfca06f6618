"""Configurations of Phi 2 to 4."""

from tests.support.hub_configs.fields import COMMON, Model, gated, sizes

MODELS: dict[str, Model] = {
    "Phi-3-mini-4k-instruct": (
        gated(
            *("Phi3ForCausalLM", 32_064, 3072, 8192, 32, 32, 32),
            eps=1e-5,
            context=4096,
            attention_bias=False,
            embd_pdrop=0.0,
            original_max_position_embeddings=4096,
            resid_pdrop=0.0,
            rope_theta=10_000.0,
            sliding_window=2047,
        ),
        "3.8 B",
    ),
    "Phi-4-mini-instruct": (
        gated(
            *("Phi3ForCausalLM", 200_064, 3072, 8192, 32, 24, 8),
            eps=1e-5,
            tied=True,
            context=131_072,
            attention_bias=False,
            embd_pdrop=0.0,
            full_attn_mod=1,
            interpolate_factor=1,
            lm_head_bias=False,
            mlp_bias=False,
            original_max_position_embeddings=4096,
            partial_rotary_factor=0.75,
            resid_pdrop=0.0,
            rope_scaling={"type": "longrope", "long_factor": [1.5] * 48, "short_factor": [1.0] * 48},
            rope_theta=10_000.0,
            sliding_window=262_144,
        ),
        "3.8 B",
    ),
    "phi-2": (
        {"architectures": ["PhiForCausalLM"]}
        | COMMON
        | sizes(51_200, 2560, 10_240, 32, 32, 32)
        | {
            "attention_dropout": 0.0,
            "embd_pdrop": 0.0,
            "hidden_act": "gelu_new",
            "layer_norm_eps": 1e-05,
            "max_position_embeddings": 2048,
            "partial_rotary_factor": 0.4,
            "qk_layernorm": False,
            "resid_pdrop": 0.1,
            "rope_scaling": None,
            "rope_theta": 10_000.0,
            "tie_word_embeddings": False,
        },
        "2.8 B",
    ),
}
