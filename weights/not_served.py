"""Architectures that are known and not served: what they take, and the nearest that is served. Host only, no jax."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NotServed:
    """``begins``: how names of the architectures begin; ``why``: what of them is not computed; ``nearest``: one that is
    served."""

    begins: tuple[str, ...]
    why: str
    nearest: str


_STATE = "has layers with a recurrent state"
_IMAGES = "is a model of images and text"
_EARLIER = "is an earlier model with other parts"

KNOWN = (
    NotServed(("Qwen3_5Moe", "Qwen3_6Moe", "Qwen3Next"), f"{_STATE} (gated delta nets)", "Qwen3MoeForCausalLM"),
    NotServed(("Qwen3_5", "Qwen3_6"), f"{_STATE} (gated delta nets)", "Qwen3ForCausalLM"),
    NotServed(("Qwen3VLMoe", "Qwen3OmniMoe"), _IMAGES, "Qwen3MoeForCausalLM"),
    NotServed(("Qwen3VL",), _IMAGES, "Qwen3ForCausalLM"),
    NotServed(("Qwen2VL", "Qwen2_5_VL", "Qwen2_5Omni"), _IMAGES, "Qwen2ForCausalLM"),
    NotServed(("Gemma4",), "has heads of two sizes, and keys that are values", "Gemma3ForCausalLM"),
    NotServed(("Gemma3n",), "has embeddings in each layer, and layers that share keys and values", "Gemma3ForCausalLM"),
    NotServed(("GemmaForCausalLM", "RecurrentGemma"), _EARLIER, "Gemma2ForCausalLM"),
    NotServed(("Deepseek", "Kimi", "Longcat"), "has multi-head latent attention (MLA)", "Qwen3MoeForCausalLM"),
    NotServed(("Glm4Moe", "GlmMoe"), "has experts that are chosen by corrected sigmoids", "Glm4ForCausalLM"),
    NotServed(("GlmForCausalLM", "ChatGLM"), _EARLIER, "Glm4ForCausalLM"),
    NotServed(("FalconMamba", "FalconH1"), f"{_STATE} (Mamba)", "FalconForCausalLM"),
    NotServed(("GraniteMoeHybrid",), f"{_STATE} (Mamba)", "GraniteForCausalLM"),
    NotServed(("Mamba", "Zamba", "Bamba", "Jamba", "NemotronH"), f"{_STATE} (Mamba)", "LlamaForCausalLM"),
    NotServed(("Rwkv", "Lfm2"), _STATE, "LlamaForCausalLM"),
    NotServed(("Llama4",), "has layers that attend to chunks, and layers without experts", "LlamaForCausalLM"),
    NotServed(("Mllama",), _IMAGES, "LlamaForCausalLM"),
    NotServed(("Bloom", "MPT", "Mpt"), "has positions as biases of scores (ALiBi)", "FalconForCausalLM"),
)
"""The first that fits, so longer beginnings come first."""


def what_is_near(architecture: str) -> str:
    """Return why an architecture is not served, and which served one is nearest; empty: it is not known."""
    for known in KNOWN:
        if architecture.startswith(known.begins):
            return f"which {known.why}, and is not served; the nearest that is served is {known.nearest}"
    return ""
