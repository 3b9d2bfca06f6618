"""Architectures that are known and not served: what they take, and the nearest that is served. Host only, no jax."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class NotServed:
    """Architectures that are refused with advice, see ``what_is_near``.

    ``begins``: how names of the architectures begin, those of llama.cpp among them; their case and signs do not count,
    and a name with ForCausalLM is whole. ``why``: what of them is not computed. ``nearest``: one that is served.
    """

    begins: tuple[str, ...]
    why: str
    nearest: str


_CAUSAL = "ForCausalLM"
_STATE = "has layers with a recurrent state"
_IMAGES = "is a model of images and text"
_SOUND = "is a model of sound, images and text"
_LATENT = "has multi-head latent attention (MLA)"
_LATENT_TOO = f"{_LATENT} in a form of its own"
_CHOSEN = "has attention to chosen tokens"
_ENCODER = "is an encoder, with attention in both directions"
_DECODER = "is the decoder of a model that attends to what an encoder read"
_EARLIER = "is an earlier model with other parts"
_CORRECTED = "has experts that are chosen by corrected sigmoids"
_SHARED = "has experts next to shared ones that have no gate"
_SIZES = "has layers of several sizes"
_DIFFUSION = "is a diffusion model, which fills in masked tokens"
_ALIBI = "has positions as biases of scores (ALiBi)"
_PLAIN = "computes what Llama does, under names and with options of its own"

KNOWN = (
    # states that a sequence carries along
    NotServed(("OlmoHybrid",), f"{_STATE} (gated delta nets)", "Olmo3ForCausalLM"),
    NotServed(("BailingHybrid", "BailingMoe3"), f"{_STATE} (linear attention)", "Qwen3MoeForCausalLM"),
    NotServed(("FalconMamba", "FalconH1"), f"{_STATE} (Mamba)", "FalconForCausalLM"),
    NotServed(
        ("Mamba", "Zamba", "Bamba", "Jamba", "NemotronH", "Plamo2", "GraniteHybrid"),
        f"{_STATE} (Mamba)",
        "LlamaForCausalLM",
    ),
    NotServed(("Rwkv", "Arwkv", "xLSTM"), _STATE, "LlamaForCausalLM"),
    NotServed(("Lfm2Audio",), _SOUND, "Lfm2ForCausalLM"),
    NotServed(("Lfm2Bidirectional",), _ENCODER, "Lfm2ForCausalLM"),
    NotServed(("Lfm3",), "has gates of attention by head, and norms around its sub-layers", "Lfm2ForCausalLM"),
    NotServed(("Inkling", "Zaya"), f"{_STATE} (short convolutions), and experts", "Qwen3MoeForCausalLM"),
    NotServed(("RecurrentGemma",), f"{_STATE} (RG-LRU)", "Gemma2ForCausalLM"),
    NotServed(("HrmText",), "runs its layers in cycles", "LlamaForCausalLM"),
    # attention of another kind
    NotServed(("Qwen4Exp",), "has embeddings of n-grams, and attention to chosen tokens", "Qwen3MoeForCausalLM"),
    NotServed(("DeepseekV4", "Deepseek4"), "has compressed sparse attention", "Qwen3MoeForCausalLM"),
    NotServed(("Glm5", "GlmMoeDsa", "GlmDsa"), _CHOSEN, "Qwen3MoeForCausalLM"),
    NotServed(("AXK2", "HYV4", "Dots3"), f"{_LATENT}, and attention to chosen tokens", "Qwen3MoeForCausalLM"),
    NotServed(("DeepseekV32", "Deepseek32"), f"{_LATENT}, and attention to chosen tokens", "DeepseekV3ForCausalLM"),
    NotServed(("DeepseekForCausalLM",), _EARLIER, "Qwen2MoeForCausalLM"),
    NotServed(("DeepseekOcr", "Deepseek2Ocr", "DeepseekVl"), _IMAGES, "DeepseekV2ForCausalLM"),
    NotServed(("Kimi", "Longcat", "AXK1", "Mistral4"), _LATENT_TOO, "DeepseekV3ForCausalLM"),
    NotServed(("MiniCPM3", "Youtu", "Plm"), _LATENT_TOO, "DeepseekV2ForCausalLM"),
    NotServed(("Llama4",), "has layers that attend to chunks, and layers without experts", "LlamaForCausalLM"),
    NotServed(("Gemma4Assistant", "Gemma4UnifiedAssistant"), "drafts tokens for another model", "Gemma4ForCausalLM"),
    NotServed(("Gemma3n",), "has embeddings in each layer, and layers that share keys and values", "Gemma3ForCausalLM"),
    NotServed(("DiffLlama",), "has differences of two attentions", "LlamaForCausalLM"),
    NotServed(("Doge",), "has masks that it computes of values", "LlamaForCausalLM"),
    NotServed(("GraniteMoeSWA", "GraniteSWA", "GraniteSwitch"), "has sinks of attention", "GraniteForCausalLM"),
    NotServed(("Flint",), "has sinks of attention, and experts that are chosen by sigmoids", "GptOssForCausalLM"),
    NotServed(("Step3",), "has gates of attention by head, and heads of several numbers", "Qwen3MoeForCausalLM"),
    NotServed(("Bloom", "MPT", "Mpt", "Refact", "Baichuan"), _ALIBI, "FalconForCausalLM"),
    NotServed(("JaisForCausalLM",), _ALIBI, "GPT2LMHeadModel"),
    NotServed(("GPTNeoForCausalLM",), "has windows and unscaled scores with learned positions", "GPT2LMHeadModel"),
    NotServed(("Cwm",), "has windows in some layers of a Llama", "MistralForCausalLM"),
    NotServed(("Cohere2Moe",), "has experts, and layers without positions", "CohereForCausalLM"),
    NotServed(("Cohere2",), "has windows in some layers, and no positions in the others", "CohereForCausalLM"),
    # experts
    NotServed(("MiniMax", "Afmoe", "Beam", "ExaoneMoe", "HYV3", "Laguna"), _CORRECTED, "Qwen3MoeForCausalLM"),
    NotServed(("MiMoV2", "MiMo2", "SolarOpen", "Kolibri", "GroveMoe"), _CORRECTED, "Qwen3MoeForCausalLM"),
    NotServed(("GlmMoe", "BailingMoe"), _CORRECTED, "Glm4MoeForCausalLM"),
    NotServed(("HunYuanMoE", "GraniteMoeShared", "AriaText"), _SHARED, "Qwen2MoeForCausalLM"),
    NotServed(("GraniteMoeForCausalLM",), "has experts, with the constants of Granite", "GraniteForCausalLM"),
    NotServed(("Arctic",), "has experts next to a plain MLP in each layer", "MixtralForCausalLM"),
    NotServed(("Grok",), "has experts, with capped scores and norms on both sides", "MixtralForCausalLM"),
    NotServed(("JetMoe",), "has experts of attention", "MixtralForCausalLM"),
    NotServed(("Phimoe",), "has experts that are chosen by a sparse mixer, and LayerNorms", "MixtralForCausalLM"),
    NotServed(("Dbrx",), "has experts, with LayerNorms and clipped queries, keys and values", "MixtralForCausalLM"),
    NotServed(("FlexOlmo", "Olmoe"), "has experts, with a norm of all queries and keys together", "Olmo2ForCausalLM"),
    NotServed(("Mellum",), "has experts, with windows in some layers", "Qwen3MoeForCausalLM"),
    NotServed(("SmallThinker",), "has experts that are chosen before attention", "Qwen3MoeForCausalLM"),
    # more than text, and no answers from left to right
    NotServed(("Qwen3OmniMoe",), _SOUND, "Qwen3VLMoeForConditionalGeneration"),
    NotServed(("Qwen2_5Omni",), _SOUND, "Qwen2_5_VLForConditionalGeneration"),
    NotServed(("Phi4Multimodal",), f"{_SOUND} with adapters for each", "Phi3ForCausalLM"),
    NotServed(
        ("Moshi", "MossTranscribe", "Musicgen", "PocketTTS", "Qwen3TTS", "Wavtokenizer"), _SOUND, "LlamaForCausalLM"
    ),
    NotServed(
        ("Mllama", "Emu3", "Fuyu", "Git", "GotOcr2", "Chameleon", "CogVLM", "PaddleOcr"), _IMAGES, "LlamaForCausalLM"
    ),
    NotServed(("CohereCompass",), _IMAGES, "CohereForCausalLM"),
    NotServed(("Ernie4_5_VL", "HunYuanVL", "MuseGlimmer"), _IMAGES, "Qwen3VLForConditionalGeneration"),
    NotServed(("Dream", "RND1"), _DIFFUSION, "Qwen2ForCausalLM"),
    NotServed(("Llada",), _DIFFUSION, "LlamaForCausalLM"),
    NotServed(("LlamaEmbed", "GemmaEmbedding", "EmbeddingGemma"), _ENCODER, "Qwen3Model"),
    NotServed(
        ("Bart", "BigBirdPegasus", "Blenderbot", "MBart", "Marian", "Mvp", "Pegasus", "PLBart", "ProphetNet", "TrOCR"),
        _DECODER,
        "OPTForCausalLM",
    ),
    NotServed(("Whisper", "T5"), _DECODER, "OPTForCausalLM"),
    NotServed(("Bert", "Roberta", "XLMRoberta", "ModernBert", "NomicBert", "DistilBert"), _ENCODER, "Qwen3Model"),
    NotServed(
        (
            "BigBird",
            "Camembert",
            "Data2Vec",
            "Electra",
            "ErnieForCausalLM",
            "EuroBert",
            "JinaBert",
            "MegatronBert",
            "NeoBert",
        ),
        _ENCODER,
        "Qwen3Model",
    ),
    NotServed(("RemBert", "RoCBert", "RoFormer", "XLMWithLMHead", "Xmod"), _ENCODER, "Qwen3Model"),
    NotServed(("XLNet",), "is trained on orders of words, with attention in both directions", "GPT2LMHeadModel"),
    NotServed(("Reformer",), "has attention by hashes, and reversible layers", "GPT2LMHeadModel"),
    NotServed(
        ("CpmAnt",), "has biases of scores by distance, and attention in both directions to prompts", "GPT2LMHeadModel"
    ),
    NotServed(("Blt",), "reads bytes, whose patches are its tokens", "LlamaForCausalLM"),
    NotServed(("Eagle", "DFlash"), "drafts tokens for another model", "LlamaForCausalLM"),
    NotServed(("Clip",), "is the part of a model that reads images", "LlamaForCausalLM"),
    # dense models, near to a served one
    NotServed(("GemmaForCausalLM", "VaultGemma"), _EARLIER, "Gemma2ForCausalLM"),
    NotServed(("GlmForCausalLM", "ChatGLM"), _EARLIER, "Glm4ForCausalLM"),
    NotServed(("QwenForCausalLM",), _EARLIER, "Qwen2ForCausalLM"),
    NotServed(
        ("OlmoForCausalLM",), "has norms without weights, and clipped queries, keys and values", "Olmo2ForCausalLM"
    ),
    NotServed(("Exaone4_5",), _IMAGES, "Exaone4ForCausalLM"),
    NotServed(("ExaoneForCausalLM",), _PLAIN, "Exaone4ForCausalLM"),
    NotServed(
        ("GPTBigCode", "StarcoderForCausalLM", "CodeShell"),
        "has one key and value for all heads",
        "Starcoder2ForCausalLM",
    ),
    NotServed(
        ("GPTJ", "CodeGen"), "has neighbouring rotary pairs, and one norm before attention and MLP", "PhiForCausalLM"
    ),
    NotServed(("GPTNeoXJapanese",), "has a bias of attention in its last layer alone", "GPTNeoXForCausalLM"),
    NotServed(("CTRL", "XGLM"), "has sines as positions", "GPT2LMHeadModel"),
    NotServed(("BioGpt",), "has learned positions of padded texts", "OPTForCausalLM"),
    NotServed(("OpenAIGPT",), "has norms after its sub-layers", "GPT2LMHeadModel"),
    NotServed(("Persimmon",), "has LayerNorms of queries and keys, and a squared ReLU", "NemotronForCausalLM"),
    NotServed(("Arcee", "Maple"), "has a plain MLP of squared ReLU between RMS norms", "NemotronForCausalLM"),
    NotServed(("Jais2",), "has a plain MLP of squared ReLU with biases", "NemotronForCausalLM"),
    NotServed(("NanoChat",), "has a plain MLP of squared ReLU, and norms without weights", "NemotronForCausalLM"),
    NotServed(("Apertus",), "has a plain MLP of xIELU", "NemotronForCausalLM"),
    NotServed(("BitNet",), "has weights of three values, and norms inside sub-layers", "LlamaForCausalLM"),
    NotServed(("Ernie4_5ForCausalLM", "Helium"), "has rotary pairs that are neighbours", "LlamaForCausalLM"),
    NotServed(("HunYuanDense",), "has norms of queries and keys after their rotation", "Qwen3ForCausalLM"),
    NotServed(
        ("HyperCLOVAX",), "has norms after its sub-layers, and constants that multiply them", "GraniteForCausalLM"
    ),
    NotServed(
        ("MiniCPMForCausalLM",), "has constants that multiply embeddings, sub-layers and logits", "GraniteForCausalLM"
    ),
    NotServed(("SeedOss",), "has biases of queries, keys and values alone, and wide heads", "Qwen2ForCausalLM"),
    NotServed(("OpenElm", "Deci"), _SIZES, "LlamaForCausalLM"),
    NotServed(("Orion",), "has LayerNorms in a Llama", "StableLmForCausalLM"),
    NotServed(("Plamo",), "has attention and MLP in parallel", "LlamaForCausalLM"),
    NotServed(
        ("InternLM2", "Xverse", "Maincoder", "Nanbeige", "Talkie", "PanguEmbedded", "Spark2_5"),
        _PLAIN,
        "LlamaForCausalLM",
    ),
)
"""The first that fits, so longer beginnings come first."""


def what_is_near(architecture: str) -> str:
    """Return why an architecture is not served, and which served one is nearest; empty: it is not known.

    The name may be that of a GGUF file: ``glm4moe`` is ``Glm4Moe``.
    """
    name = _squeezed(architecture)
    for known in KNOWN:
        for begin in known.begins:
            squeezed = _squeezed(begin)
            if name == squeezed or (not begin.endswith(_CAUSAL) and name.startswith(squeezed)):
                return f"which {known.why}, and is not served; the nearest that is served is {known.nearest}"
    return ""


def _squeezed(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.removesuffix(_CAUSAL).lower())
