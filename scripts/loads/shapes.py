"""The shapes that measurements and comparisons use, as fields of config.json: weights are random."""

from typing import Any

from jaxgen.core.decoder_config import DecoderConfig
from tests.support.hub_configs import HUB, read

Config = dict[str, Any]
LONGEST = 131_072
"""Tokens of the longest context of shapes without a model."""


def llama(vocab: int, width: int, inner: int, layers: int, heads: int, kv_heads: int, *, tied: bool = False) -> Config:
    """Return the fields of a Llama shape with plain rotations."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": inner,
        "max_position_embeddings": LONGEST,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "vocab_size": vocab,
    }


def hub(name: str, **changes: Any) -> Config:
    """Return a model's fields, some of them changed."""
    return HUB[name].config | changes


VOCABULARY, LARGE_VOCABULARY = 32_768, 151_936
"""Tokens of shapes whose head is as cheap as that of models of a few years ago, and of Qwen3's."""
_1B = (2048, 8192, 16, 32, 8)
CONFIGS: dict[str, Config] = {
    "88m": llama(8192, 768, 2048, 12, 12, 4),
    "88m-mha": llama(8192, 768, 2048, 12, 12, 12),
    "tiny": llama(2048, 192, 512, 6, 6, 2) | {"torch_dtype": "float32"},
    "1b": llama(VOCABULARY, *_1B, tied=True),
    "1b-152k": llama(LARGE_VOCABULARY, *_1B, tied=True),
    "88m-smollm2": llama(49_152, 768, 2048, 12, 12, 4, tied=True),
    "1b-qwen": llama(LARGE_VOCABULARY, *_1B, tied=True),
    "smollm2-135m": hub("SmolLM2-135M-Instruct"),
    "gemma-3-270m": hub("gemma-3-270m-it"),
    "qwen3-0.6b": hub("Qwen3-0.6B", vocab_size=VOCABULARY),
    "qwen3-0.6b-152k": hub("Qwen3-0.6B"),
    "30b-a3b-small": hub(
        "Qwen3-30B-A3B-Thinking-2507",
        vocab_size=VOCABULARY,
        hidden_size=1024,
        num_hidden_layers=6,
        num_attention_heads=16,
        num_key_value_heads=2,
        moe_intermediate_size=384,
    ),
    "lfm2.5-1.2b": hub("LFM2-1.2B"),
    "qwen3.5-0.8b": hub("Qwen3.6-27B")["text_config"]
    | {
        "architectures": ["Qwen3_5ForCausalLM"],
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "layer_types": hub("Qwen3.6-27B")["text_config"]["layer_types"][:24],
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "linear_num_value_heads": 16,
        "tie_word_embeddings": True,
    },
    "glm-4.7-flash-small": hub(
        "GLM-4.7-Flash", vocab_size=VOCABULARY, num_hidden_layers=4, n_routed_experts=8, num_nextn_predict_layers=0
    ),
}
"""``88m-smollm2`` and ``1b-qwen`` have the vocabularies of these models. ``88m-mha`` has as many KV heads as heads.
``1b`` is Llama-3.2-1B's shape with a quarter of its vocabulary. ``30b-a3b-small`` is a Qwen3-30B-A3B of half the width,
heads and inner width, with all of its 128 experts in an eighth of its layers. ``lfm2.5-1.2b`` is LFM2-1.2B's shape too.
``glm-4.7-flash-small`` has 4 of the 47 layers of a GLM-4.7-Flash, and 8 of its 64 experts."""
SHAPES: dict[str, DecoderConfig] = {name: read(config) for name, config in CONFIGS.items()}
