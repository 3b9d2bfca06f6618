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
_SOUND = "is a model of sound, images and text"
_LATENT = "has multi-head latent attention (MLA)"
_ENCODER = "is an encoder, with attention in both directions"
_EARLIER = "is an earlier model with other parts"

KNOWN = (
    NotServed(("Qwen3_5Moe", "Qwen3_6Moe", "Qwen3Next"), f"{_STATE} (gated delta nets)", "Qwen3MoeForCausalLM"),
    NotServed(("Qwen3_5", "Qwen3_6"), f"{_STATE} (gated delta nets)", "Qwen3ForCausalLM"),
    NotServed(("Qwen4Exp",), "has embeddings of n-grams, and attention to chosen tokens", "Qwen3MoeForCausalLM"),
    NotServed(("Qwen3OmniMoe",), _SOUND, "Qwen3VLMoeForConditionalGeneration"),
    NotServed(("Qwen2_5Omni",), _SOUND, "Qwen2_5_VLForConditionalGeneration"),
    NotServed(("Gemma4",), "has heads of two sizes, and keys that are values", "Gemma3ForCausalLM"),
    NotServed(("Gemma3n",), "has embeddings in each layer, and layers that share keys and values", "Gemma3ForCausalLM"),
    NotServed(("GemmaForCausalLM", "RecurrentGemma"), _EARLIER, "Gemma2ForCausalLM"),
    NotServed(("DeepseekV4",), "has compressed sparse attention", "Qwen3MoeForCausalLM"),
    NotServed(("Deepseek", "Kimi", "Longcat", "Glm4MoeLite"), _LATENT, "Qwen3MoeForCausalLM"),
    NotServed(("Glm5", "GlmMoeDsa"), "has attention to chosen tokens", "Qwen3MoeForCausalLM"),
    NotServed(("MiniMax",), "has experts that are chosen by corrected sigmoids", "Qwen3MoeForCausalLM"),
    NotServed(("Glm4Moe", "GlmMoe"), "has experts that are chosen by corrected sigmoids", "Glm4ForCausalLM"),
    NotServed(("GlmForCausalLM", "ChatGLM"), _EARLIER, "Glm4ForCausalLM"),
    NotServed(("FalconMamba", "FalconH1"), f"{_STATE} (Mamba)", "FalconForCausalLM"),
    NotServed(("Mamba", "Zamba", "Bamba", "Jamba", "NemotronH"), f"{_STATE} (Mamba)", "LlamaForCausalLM"),
    NotServed(("Rwkv", "Lfm2"), _STATE, "LlamaForCausalLM"),
    NotServed(("Llama4",), "has layers that attend to chunks, and layers without experts", "LlamaForCausalLM"),
    NotServed(("Mllama",), _IMAGES, "LlamaForCausalLM"),
    NotServed(("Bert", "Roberta", "XLMRoberta", "ModernBert", "NomicBert", "DistilBert"), _ENCODER, "Qwen3Model"),
    NotServed(("Bloom", "MPT", "Mpt"), "has positions as biases of scores (ALiBi)", "FalconForCausalLM"),
)
"""The first that fits, so longer beginnings come first."""


def what_is_near(architecture: str) -> str:
    """Return why an architecture is not served, and which served one is nearest; empty: it is not known."""
    for known in KNOWN:
        if architecture.startswith(known.begins):
            return f"which {known.why}, and is not served; the nearest that is served is {known.nearest}"
    return ""
