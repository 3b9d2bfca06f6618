"""Fields of config.json that several families share."""

from typing import Any

Config = dict[str, Any]
Model = tuple[Config, str]
"""A configuration, and its number of parameters as its card has it: of text alone, and without what padding of the
vocabulary repeats."""

COMMON: Config = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
}
"""Of nearly every file."""
YARN: Config = {"rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0}
FULL, SLIDING = "full_attention", "sliding_attention"


def sizes(vocab: int, width: int, inner: int, layers: int, heads: int, kv_heads: int | None, **more: Any) -> Config:
    """Return the fields of a model's sizes, and ``more``."""
    found: Config = {
        "vocab_size": vocab,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }
    return found | ({} if kv_heads is None else {"num_key_value_heads": kv_heads}) | more


def gated(
    architecture: Any, *shape: Any, eps: float = 1e-6, tied: bool = False, context: int = 32_768, **more: Any
) -> Config:
    """Return the fields of a model with RMS norms and a gated feed-forward. ``shape``: as ``sizes`` takes it."""
    about = {"hidden_act": "silu", "rms_norm_eps": eps, "tie_word_embeddings": tied, "max_position_embeddings": context}
    common: Config = {"attention_dropout": 0.0, "rope_scaling": None}
    return {"architectures": [architecture]} | COMMON | common | sizes(*shape) | about | more


def turns(pattern: list[Any], layers: int) -> list[Any]:
    """Return a pattern repeated for this number of layers."""
    return (pattern * layers)[:layers]
