"""Sizes and rotary settings that recipes share."""

from typing import Any

WINDOW = 16
"""Shorter than most prompts."""
ORIGINAL = 32
"""Positions of a rope before it was stretched: shorter than the long prompts."""

NO_ENDS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
TINY: dict[str, Any] = NO_ENDS | {
    "vocab_size": 128,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def rope(theta: float = 1000.0, kind: str = "default", **more: Any) -> dict[str, Any]:
    """Return rotary settings as transformers 5 spells them."""
    return {"rope_type": kind, "rope_theta": theta} | more


def ropes(base: dict[str, Any], *changes: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return contrasts of the rotary settings ``base``, each with some changed."""
    return tuple({"rope_parameters": base | change} for change in changes)


YARN = rope(kind="yarn", factor=4.0, original_max_position_embeddings=ORIGINAL, beta_fast=2.0, beta_slow=0.25)
"""For heads of 16 numbers, of which these betas and those of OF_YARN choose different ones."""
OF_YARN: tuple[dict[str, Any], ...] = (
    {"rope_theta": 500.0},
    {"factor": 8.0},
    {"original_max_position_embeddings": 64},
    {"beta_fast": 32.0},
    {"beta_slow": 1.0},
    {"attention_factor": 1.0},
)
ROPE = {"rope_parameters": rope()}
OTHER_ROPE = {"rope_parameters": rope(10_000.0)}
GROUPED: dict[str, Any] = (
    TINY | ROPE | {"intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 128}
)
"""Of a decoder with grouped queries."""
GATED: dict[str, Any] = GROUPED | {"rms_norm_eps": 0.01}
"""Of a decoder with RMSNorm, grouped queries and a gated MLP."""
WIDE_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
"""Heads of 16 numbers where the family has no head_dim."""
OTHER_EPS = {"rms_norm_eps": 1e-6}
OTHER_ACT = {"hidden_act": "gelu"}
UNTIED = {"tie_word_embeddings": False}
TIED = {"tie_word_embeddings": True}
OF_GATED: tuple[dict[str, Any], ...] = (OTHER_EPS, OTHER_ACT, OTHER_ROPE)
"""Contrasts that each such decoder has."""

FULL, SLIDING = "full_attention", "sliding_attention"
LAYERS = {"sliding_window": WINDOW, "layer_types": [SLIDING, FULL]}
OF_LAYERS: tuple[dict[str, Any], ...] = ({"sliding_window": WINDOW + 1}, {"layer_types": [FULL, SLIDING]})
"""Contrasts of a window in the first of two layers."""


def on_second_layer(window: int) -> dict[str, Any]:
    """Return the settings of Qwen's families for a window from the second layer on."""
    return {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 1}


OF_SECOND_LAYER: tuple[dict[str, Any], ...] = (
    *({"sliding_window": WINDOW + 1}, {"max_window_layers": 0}, {"use_sliding_window": False}),
)
"""Contrasts of these."""
