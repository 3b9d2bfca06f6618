"""What config.json of models on the hub says, in the spelling of their own files, and how many parameters they have.

Fields that only training, generation or transformers reads are there too: a reader that refuses what it does not know
must know them. ``COMMON`` are those of nearly every file.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.weights.hf_config import read_model_config

Config = dict[str, Any]

COMMON: Config = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
}


def _sizes(vocab: int, width: int, inner: int, layers: int, heads: int, kv_heads: int | None, **more: Any) -> Config:
    sizes: Config = {
        "vocab_size": vocab,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }
    return sizes | ({} if kv_heads is None else {"num_key_value_heads": kv_heads}) | more


def _gated(
    architecture: Any, *sizes: Any, eps: float = 1e-6, tied: bool = False, context: int = 32_768, **more: Any
) -> Config:
    about = {"hidden_act": "silu", "rms_norm_eps": eps, "tie_word_embeddings": tied, "max_position_embeddings": context}
    common: Config = {"attention_dropout": 0.0, "rope_scaling": None}
    return {"architectures": [architecture]} | COMMON | common | _sizes(*sizes) | about | more


_QWEN: Config = {"use_sliding_window": False, "sliding_window": None, "attention_bias": False, "head_dim": 128}
_QWEN3: Config = _QWEN | {"max_window_layers": 28, "rope_theta": 1_000_000}
_QWEN_MOE: Config = {
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
}
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
_YARN: Config = {"rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0}


def _turns(pattern: list[Any], layers: int) -> list[Any]:
    return (pattern * layers)[:layers]


_FULL, _SLIDING = "full_attention", "sliding_attention"

HUB: dict[str, tuple[Config, str]] = {
    "Llama-3.1-8B": (
        _gated(
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
    "SmolLM2-135M-Instruct": (
        _gated(
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
    "Mistral-7B-v0.1": (
        _gated("MistralForCausalLM", 32_000, 4096, 14_336, 32, 32, 8, eps=1e-5, sliding_window=4096, rope_theta=1e4),
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
            "text_config": _sizes(131_072, 5120, 32_768, 40, 32, 8, head_dim=128, model_type="mistral")
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
            "text_config": _sizes(131_072, 4096, 14_336, 34, 32, 8, head_dim=128, model_type="ministral3")
            | {
                "hidden_act": "silu",
                "max_position_embeddings": 262_144,
                "rms_norm_eps": 1e-05,
                "rope_parameters": _YARN
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
    "Qwen2.5-0.5B": (
        _gated(
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
        _gated("Qwen3ForCausalLM", 151_936, 1024, 3072, 28, 16, 8, tied=True, context=40_960, **_QWEN3),
        "0.6 B",
    ),
    "Qwen3-8B": (_gated("Qwen3ForCausalLM", 151_936, 4096, 12_288, 36, 32, 8, context=40_960, **_QWEN3), "8.2 B"),
    "Qwen3-30B-A3B-Thinking-2507": (
        _gated(
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
        _gated(
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
    "Mixtral-8x7B-v0.1": (
        _gated(
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
    "gpt-oss-20b": (
        _gated(
            *("GptOssForCausalLM", 201_088, 2880, 2880, 24, 64, 8),
            eps=1e-5,
            context=131_072,
            attention_bias=True,
            experts_per_token=4,
            head_dim=64,
            initial_context_length=4096,
            layer_types=_turns([_SLIDING, _FULL], 24),
            num_experts_per_tok=4,
            num_local_experts=32,
            output_router_logits=False,
            quantization_config={"modules_to_not_convert": ["model.layers.*.self_attn"], "quant_method": "mxfp4"},
            rope_scaling=_YARN | {"factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False},
            rope_theta=150_000,
            router_aux_loss_coef=0.9,
            sliding_window=128,
            swiglu_limit=7.0,
        ),
        "20.9 B",
    ),
    "gemma-2-9b": (
        {"architectures": ["Gemma2ForCausalLM"]}
        | COMMON
        | _GEMMA
        | _sizes(256_000, 3584, 14_336, 42, 16, 8)
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
        | _sizes(262_144, 1152, 6912, 26, 4, 1)
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
    "Phi-3-mini-4k-instruct": (
        _gated(
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
        _gated(
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
        | _sizes(51_200, 2560, 10_240, 32, 32, 32)
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
    "SmolLM3-3B": (
        _gated(
            *("SmolLM3ForCausalLM", 128_256, 2048, 11_008, 36, 16, 4),
            tied=True,
            context=65_536,
            attention_bias=False,
            layer_types=[_FULL] * 36,
            max_window_layers=28,
            mlp_bias=False,
            no_rope_layer_interval=4,
            no_rope_layers=_turns([1, 1, 1, 0], 36),
            pretraining_tp=2,
            rope_theta=5_000_000.0,
            sliding_window=None,
            use_sliding_window=False,
        ),
        "3.1 B",
    ),
    "OLMo-2-0425-1B": (
        _gated(
            *("Olmo2ForCausalLM", 100_352, 2048, 8192, 16, 16, 16),
            context=4096,
            attention_bias=False,
            rope_theta=500_000,
        ),
        "1.5 B",
    ),
    "Olmo-3-7B": (
        _gated(
            *("Olmo3ForCausalLM", 100_278, 4096, 11_008, 32, 32, 32),
            context=65_536,
            attention_bias=False,
            layer_types=_turns([_SLIDING] * 3 + [_FULL], 32),
            rope_scaling=_YARN | {"attention_factor": 1.2079, "factor": 8.0, "original_max_position_embeddings": 8192},
            rope_theta=500_000,
            sliding_window=4096,
        ),
        "7.3 B",
    ),
    "GLM-4-9B-0414": (
        _gated(
            *("Glm4ForCausalLM", 151_552, 4096, 13_696, 40, 32, 2),
            eps=1e-5,
            attention_bias=False,
            head_dim=128,
            partial_rotary_factor=0.5,
            rope_theta=10_000.0,
        ),
        "9.4 B",
    ),
    "granite-3.3-2b-instruct": (
        _gated(
            *("GraniteForCausalLM", 49_159, 2048, 8192, 40, 32, 8),
            eps=1e-5,
            tied=True,
            context=131_072,
            attention_bias=False,
            attention_multiplier=0.015625,
            embedding_multiplier=12.0,
            logits_scaling=8.0,
            mlp_bias=False,
            residual_multiplier=0.22,
            rope_theta=10_000_000.0,
        ),
        "2.5 B",
    ),
    "gpt2-medium": (
        {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "initializer_range": 0.02}
        | _GPT2
        | {"n_embd": 1024, "n_head": 16, "n_layer": 24},
        "354.8 M",
    ),
    "pythia-70m": (
        {"architectures": ["GPTNeoXForCausalLM"]}
        | COMMON
        | _sizes(50_304, 512, 2048, 6, 8, None)
        | {
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-05,
            "max_position_embeddings": 2048,
            "rotary_emb_base": 10_000,
            "rotary_pct": 0.25,
            "tie_word_embeddings": False,
            "use_parallel_residual": True,
        },
        "70.4 M",
    ),
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
"""By the name of the model: its configuration, and its number of parameters as its card has it, without what is not
text and without what padding of the vocabulary repeats."""


def described(name: str) -> DecoderConfig:
    """Return the description of one of them."""
    with TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(HUB[name][0]))
        config = read_model_config(Path(folder))
    assert isinstance(config, DecoderConfig)
    return config
