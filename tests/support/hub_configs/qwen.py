"""Configurations of Qwen 1.5 to 3."""

from tests.support.hub_configs.fields import Config, Model, gated

_QWEN: Config = {"use_sliding_window": False, "sliding_window": None, "attention_bias": False, "head_dim": 128}
_QWEN3: Config = _QWEN | {"max_window_layers": 28, "rope_theta": 1_000_000}
_QWEN_MOE: Config = {
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
}

MODELS: dict[str, Model] = {
    "Qwen2.5-0.5B": (
        gated(
            *("Qwen2ForCausalLM", 151_936, 896, 4864, 24, 14, 2),
            tied=True,
            max_window_layers=24,
            rope_theta=1_000_000.0,
            sliding_window=32_768,
            use_mrope=False,
            use_sliding_window=False,
        ),
        "494.0 M",
    ),
    "Qwen3-0.6B": (
        gated("Qwen3ForCausalLM", 151_936, 1024, 3072, 28, 16, 8, tied=True, context=40_960, **_QWEN3),
        "0.6 B",
    ),
    "Qwen3-8B": (gated("Qwen3ForCausalLM", 151_936, 4096, 12_288, 36, 32, 8, context=40_960, **_QWEN3), "8.2 B"),
    "Qwen3-30B-A3B-Thinking-2507": (
        gated(
            *("Qwen3MoeForCausalLM", 151_936, 2048, 6144, 48, 32, 4),
            context=262_144,
            max_window_layers=48,
            moe_intermediate_size=768,
            norm_topk_prob=True,
            num_experts=128,
            num_experts_per_tok=8,
            qkv_bias=False,
            rope_theta=10_000_000,
            shared_expert_intermediate_size=0,
            use_qk_norm=True,
        )
        | _QWEN
        | _QWEN_MOE,
        "30.5 B",
    ),
    "Qwen1.5-MoE-A2.7B": (
        gated(
            *("Qwen2MoeForCausalLM", 151_936, 2048, 5632, 24, 16, 16),
            context=8192,
            max_window_layers=21,
            moe_intermediate_size=1408,
            norm_topk_prob=False,
            num_experts=60,
            num_experts_per_tok=4,
            rope_theta=1_000_000.0,
            shared_expert_intermediate_size=5632,
            sliding_window=32_768,
            use_sliding_window=False,
        )
        | _QWEN_MOE,
        "14.3 B",
    ),
}
