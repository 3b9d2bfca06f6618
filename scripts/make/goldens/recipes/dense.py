"""Dense decoders: Qwen, Llama and Mistral with scaled ropes, Phi-3, SmolLM3 and GPT-2."""

from functools import partial
from typing import Any

from scripts.make.goldens.recipes.common import (
    FULL,
    GATED,
    LAYERS,
    NO_ENDS,
    OF_GATED,
    OF_LAYERS,
    OF_SECOND_LAYER,
    OF_YARN,
    OTHER_ACT,
    OTHER_EPS,
    SLIDING,
    TIED,
    UNTIED,
    WIDE_HEADS,
    WINDOW,
    YARN,
    on_second_layer,
    rope,
    ropes,
)
from scripts.make.goldens.spelling import Spelling
from scripts.make.goldens.variant import Tensors, Variant

_qwen2 = partial(Variant, architecture="Qwen2ForCausalLM")
_qwen3 = partial(Variant, architecture="Qwen3ForCausalLM")

QWEN = {
    "qwen2": _qwen2(
        settings=GATED | TIED | on_second_layer(WINDOW),
        contrasts=(*OF_GATED, *OF_SECOND_LAYER),
    ),
    # The window is named and not used, as in the hub's files.
    "qwen2_yarn": _qwen2(
        settings=GATED | WIDE_HEADS | {"rope_parameters": YARN},
        contrasts=(OTHER_EPS, OTHER_ACT, *ropes(YARN, *OF_YARN), on_second_layer(WINDOW)),
        spelling=Spelling(
            old=True,
            kind="type",
            add={"use_sliding_window": False, "sliding_window": WINDOW, "max_window_layers": 1},
        ),
    ),
    "qwen3": _qwen3(
        settings=GATED | TIED | {"rope_parameters": YARN, "head_dim": 16},
        contrasts=(OTHER_EPS, OTHER_ACT, *ropes(YARN, *OF_YARN)),
    ),
    "qwen3_bias": _qwen3(
        settings=GATED | {"head_dim": 12, "attention_bias": True} | on_second_layer(WINDOW),
        contrasts=(*OF_GATED, {"attention_bias": False}, *OF_SECOND_LAYER),
        spelling=Spelling(old=True),
    ),
}

STRONG = YARN | {"attention_factor": 1.3}
MSCALE = YARN | {"mscale": 1.0, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.1, "type": "yarn"}
OF_MSCALE: tuple[dict[str, Any], ...] = ({"mscale": 0.5}, {"mscale_all_dim": 1.0}, {"llama_4_scaling_beta": 0.2})

LLAMA = {
    "llama_yarn": Variant(
        architecture="LlamaForCausalLM",
        settings=GATED | {"head_dim": 16, "rope_parameters": STRONG},
        contrasts=(OTHER_EPS, OTHER_ACT, *ropes(STRONG, *OF_YARN)),
        spelling=Spelling(old=True),
    ),
    "mistral_nemo": Variant(
        architecture="MistralForCausalLM",
        settings=GATED | {"head_dim": 12, "sliding_window": None, "vocab_size": 131},
        contrasts=(*OF_GATED, {"sliding_window": WINDOW}),
        spelling=Spelling(old=True),
    ),
    "ministral": Variant(
        architecture="MinistralForCausalLM",
        settings=GATED | LAYERS | {"head_dim": 12},
        contrasts=(*OF_GATED, *OF_LAYERS),
    ),
    "ministral3": Variant(
        architecture="Ministral3ForCausalLM",
        settings=GATED | {"head_dim": 16, "rope_parameters": MSCALE},
        contrasts=(OTHER_EPS, OTHER_ACT, *ropes(MSCALE, *OF_YARN, *OF_MSCALE)),
    ),
}

LONGROPE = rope(
    kind="longrope",
    partial_rotary_factor=0.75,
    short_factor=[1.0, 1.1, 1.2, 1.3, 1.5, 1.7],
    long_factor=[1.0, 1.5, 2.0, 3.0, 4.0, 5.0],
)


def _phi3(original: int) -> dict[str, Any]:
    named = {"original_max_position_embeddings": original}
    return GATED | WIDE_HEADS | named | {"rope_parameters": LONGROPE | named}


def _of_longrope(settings: dict[str, Any], used: str, unused: str) -> tuple[dict[str, Any], ...]:
    base = settings["rope_parameters"]
    whole = {"partial_rotary_factor": 1.0, used: [*base[used], 6.0, 7.0], unused: [*base[unused], 6.0, 7.0]}
    changes = ({used: base[unused]}, {"attention_factor": 1.0}, {"rope_theta": 500.0}, whole)
    return OTHER_EPS, OTHER_ACT, *ropes(base, *changes)


PHI3 = {
    # Prompts and answers stay within the 64 positions of the short factors, then begin past the 32 of the long ones:
    # transformers changes all angles of a sequence when it grows past them.
    "phi3_short": Variant(
        architecture="Phi3ForCausalLM",
        settings=_phi3(64) | TIED,
        contrasts=_of_longrope(_phi3(64), "short_factor", "long_factor"),
        lengths=(1, 7, 33, 40),
        spelling=Spelling(old=True, kind="type"),
    ),
    "phi3_long": Variant(
        architecture="Phi3ForCausalLM",
        settings=_phi3(32),
        contrasts=_of_longrope(_phi3(32), "long_factor", "short_factor"),
        lengths=(33, 48, 90),
    ),
    "phi3_window": Variant(
        architecture="Phi3ForCausalLM",
        settings=GATED | {"num_key_value_heads": 4, "sliding_window": 17},
        contrasts=(*OF_GATED, {"sliding_window": 16}),
        spelling=Spelling(old=True, kind="type"),
    ),
}

SMOLLM3 = {
    "smollm3": Variant(
        architecture="SmolLM3ForCausalLM",
        settings=GATED | TIED | {"no_rope_layers": [1, 0]},
        contrasts=(*OF_GATED, {"no_rope_layers": [0, 1]}, {"no_rope_layers": [1, 1]}),
        spelling=Spelling(old=True, drop=("no_rope_layer_interval",)),
    ),
    "smollm3_bias": Variant(
        architecture="SmolLM3ForCausalLM",
        settings=GATED
        | WIDE_HEADS
        | UNTIED
        | {"rope_parameters": YARN, "attention_bias": True, "mlp_bias": True, "no_rope_layer_interval": 2}
        | {"use_sliding_window": True, "sliding_window": WINDOW},
        contrasts=(
            OTHER_EPS,
            OTHER_ACT,
            *ropes(YARN, *OF_YARN),
            {"attention_bias": False},
            {"mlp_bias": False},
            {"no_rope_layer_interval": 3},
            {"sliding_window": WINDOW + 1},
            {"use_sliding_window": False},
            {"layer_types": [SLIDING, FULL]},
        ),
        idle=("layers.1.self_attn.k_proj.bias",),
        spelling=Spelling(drop=("no_rope_layers", "layer_types")),
    ),
}


def _gpt2_of_the_hub(tensors: Tensors) -> Tensors:
    """The old files: no prefix, and the causal mask of each layer."""
    result = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    one = tensors["transformer.ln_f.weight"]
    for layer in range(2):
        result[f"h.{layer}.attn.bias"] = one.new_ones(1, 1, 128, 128).tril().byte()
        result[f"h.{layer}.attn.masked_bias"] = one.new_full((), -10_000.0).float()
    return result


GPT2_SIZES: dict[str, Any] = NO_ENDS | {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "layer_norm_epsilon": 0.01,
}
_gpt2 = partial(
    Variant,
    architecture="GPT2LMHeadModel",
    contrasts=({"layer_norm_epsilon": 1e-5}, {"activation_function": "gelu"}, {"activation_function": "relu"}),
    inputs_first=True,
)

GPT2 = {
    "gpt2": _gpt2(settings=GPT2_SIZES | {"vocab_size": 131}, dtype="float16"),
    "gpt2_hub": _gpt2(
        settings=GPT2_SIZES | {"vocab_size": 128, "n_embd": 24},
        dtype="float32",
        contrasts=({"layer_norm_epsilon": 1e-5}, {"activation_function": "relu"}),
        spelling=Spelling(old=True, drop=("torch_dtype", "n_inner", "tie_word_embeddings"), add={"n_ctx": 128}),
        rewrite=_gpt2_of_the_hub,
    ),
}

VARIANTS = QWEN | LLAMA | PHI3 | SMOLLM3 | GPT2
