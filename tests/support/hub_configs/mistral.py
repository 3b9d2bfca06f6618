"""Configurations of Mistral, Ministral and Mixtral."""

from tests.support.hub_configs.fields import YARN, Model, gated, sizes

MODELS: dict[str, Model] = {
    "Mistral-7B-v0.1": (
        gated("MistralForCausalLM", 32_000, 4096, 14_336, 32, 32, 8, eps=1e-5, sliding_window=4096, rope_theta=1e4),
        "7.2 B",
    ),
    "Mistral-Small-3.1-24B": (
        {
            "architectures": ["Mistral3ForConditionalGeneration"],
            "image_token_index": 10,
            "model_type": "mistral3",
            "multimodal_projector_bias": False,
            "projector_hidden_act": "gelu",
            "spatial_merge_size": 2,
            "torch_dtype": "bfloat16",
            "vision_config": {"model_type": "pixtral"},
            "text_config": sizes(131_072, 5120, 32_768, 40, 32, 8, head_dim=128, model_type="mistral")
            | {
                "attention_dropout": 0.0,
                "hidden_act": "silu",
                "initializer_range": 0.02,
                "max_position_embeddings": 131_072,
                "rms_norm_eps": 1e-05,
                "rope_theta": 1_000_000_000.0,
                "sliding_window": None,
                "use_cache": True,
            },
        },
        "23.6 B",
    ),
    "Ministral-3-8B-BF16": (
        {
            "architectures": ["Mistral3ForConditionalGeneration"],
            "dtype": "bfloat16",
            "vision_config": {"model_type": "pixtral"},
            "text_config": sizes(131_072, 4096, 14_336, 34, 32, 8, head_dim=128, model_type="ministral3")
            | {
                "hidden_act": "silu",
                "max_position_embeddings": 262_144,
                "rms_norm_eps": 1e-05,
                "rope_parameters": YARN
                | {
                    "factor": 16.0,
                    "llama_4_scaling_beta": 0.1,
                    "mscale": 1.0,
                    "mscale_all_dim": 1.0,
                    "original_max_position_embeddings": 16_384,
                    "rope_theta": 1_000_000.0,
                    "type": "yarn",
                },
                "sliding_window": None,
                "tie_word_embeddings": False,
            },
        },
        "8.5 B",
    ),
    "Mixtral-8x7B-v0.1": (
        gated(
            *("MixtralForCausalLM", 32_000, 4096, 14_336, 32, 32, 8),
            eps=1e-5,
            num_experts_per_tok=2,
            num_local_experts=8,
            output_router_logits=False,
            rope_theta=1_000_000.0,
            router_aux_loss_coef=0.02,
            sliding_window=None,
        ),
        "46.7 B",
    ),
}
