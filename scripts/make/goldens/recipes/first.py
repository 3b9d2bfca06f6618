"""Llama 1 to 3, Mistral and OPT; some have weights in float32."""

from functools import partial
from typing import Any

from scripts.make.goldens.recipes.common import NO_ENDS, TIED, rope
from scripts.make.goldens.spelling import Spelling
from scripts.make.goldens.variant import Variant

COMMON: dict[str, Any] = NO_ENDS | {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
DEFAULT = {"rope_parameters": rope(10_000.0)}
LLAMA = COMMON | DEFAULT | {"intermediate_size": 96, "num_key_value_heads": 2}
OPT = COMMON | {"ffn_dim": 96}
LLAMA3_ROPE = rope(
    10_000.0,
    "llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
OLD = Spelling(old=True, kind="type")

_recorded = partial(Variant, dtype="float32")
_llama = partial(_recorded, architecture="LlamaForCausalLM", contrasts=(DEFAULT,))
_narrow = partial(_llama, dtype="bfloat16")
# Without positions in its queries a key's bias is the same for all keys.
_opt = partial(
    _recorded,
    architecture="OPTForCausalLM",
    contrasts=({"activation_function": "gelu"},),
    idle=("k_proj.bias",),
)

VARIANTS = {
    "llama": _llama(settings=LLAMA | {"rope_parameters": rope(5000.0)}, shard_size="250KB", spelling=OLD),
    "llama3_rope": _narrow(settings=LLAMA | TIED | {"rope_parameters": LLAMA3_ROPE}),
    "llama_linear_rope": _llama(
        settings=LLAMA | TIED | {"num_hidden_layers": 1, "rope_parameters": rope(10_000.0, "linear", factor=4.0)},
        lengths=(33,),
        spelling=OLD,
    ),
    "llama_bias": _narrow(
        settings=LLAMA | {"attention_bias": True, "mlp_bias": True, "head_dim": 24},
        contrasts=({"rms_norm_eps": 0.1}, {"attention_bias": False}, {"mlp_bias": False}),
    ),
    "mistral_window": _narrow(
        architecture="MistralForCausalLM", settings=LLAMA | {"sliding_window": 16}, contrasts=({"sliding_window": 17},)
    ),
    "opt_pre": _opt(settings=OPT),
    "opt_350m": _opt(settings=OPT | {"word_embed_proj_dim": 32, "do_layer_norm_before": False}, spelling=OLD),
}
