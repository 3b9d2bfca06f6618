"""The architectures of GGUF files that can be converted: their config.json and the names of their tensors.

Host only, no jax.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxgen.core.errors import ConfigError
from jaxgen.core.model_info import Pooling
from jaxgen.weights.config_fields import REQUIRED, Fields
from jaxgen.weights.families import without_head
from jaxgen.weights.family import BOTH_WAYS, FULL, SLIDING
from jaxgen.weights.gguf.file import GgufFile
from jaxgen.weights.gguf.rope import rope_parameters

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
_ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_POOLING = "pooling_type"
_POOLINGS = {0: None, 1: Pooling.MEAN, 2: Pooling.CLS, 3: Pooling.LAST}
_RANK = 4
"""Values of ``pooling_type``, by llama.cpp's numbers."""
_IN_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_MODULES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Modules of a layer in a Hugging Face checkpoint, and their names in a GGUF file."""
_SANDWICH = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}

Describe = Callable[[GgufFile, Fields, dict[str, Any]], dict[str, Any]]
"""Returns the fields of config.json that an architecture adds to those of all, which it is given. ``Fields``: the
metadata of the architecture, without its name in front."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """``model``: the value of ``architectures`` in config.json. ``model_type``: the name beside it.

    ``modules``: names of modules where they differ from those of all. ``rotated``: whether the rows of queries and keys
    are in the order in which rotary pairs are neighbours. ``by_position``: whether the tokens of a SentencePiece
    vocabulary merge in the order of their ids, not of their scores. ``strips``: whether text loses the space after a
    special token.
    """

    model: str
    model_type: str
    describe: Describe
    modules: Mapping[str, str] = field(default_factory=dict)
    rotated: bool = False
    by_position: bool = False
    strips: bool = False

    def stored_name(self, name: str) -> str:
        """Return the name in a GGUF file of a tensor of a Hugging Face checkpoint."""
        found = _IN_LAYER.fullmatch(name)
        if found is None:
            module, _, part = name.rpartition(".")
            return f"{_ENDS[module]}.{part}"
        layer, module, part = found.groups()
        return f"blk.{layer}.{(_MODULES | dict(self.modules))[module]}.{part}"


def architecture_of(file: GgufFile) -> Architecture:
    """Return the architecture of a file. Raises ConfigError for one that cannot be converted."""
    file.fields.choice("general.type", "model", ("model",))
    return ARCHITECTURES[file.fields.choice("general.architecture", REQUIRED, tuple(ARCHITECTURES))]


def config_of(file: GgufFile) -> dict[str, Any]:
    """Return config.json. Raises ConfigError for metadata that are missing, not supported or not known."""
    architecture, own = architecture_of(file), own_fields(file)
    own.must_be("expert_count", 0, "models with experts are not converted")
    own.must_be("attention.causal", True, BOTH_WAYS)
    own.ignore("vocab_size", "expert_used_count")  # the size is that of the embedding
    config = _common(file, own, architecture)
    config |= architecture.describe(file, own, config)
    if pooling_of(own) is not None and HEAD not in file.tensors:  # made for embeddings, with a tied head or with none
        config["architectures"] = [without_head(name) for name in config["architectures"]]
    for key, value in sorted(own.data.items()):
        if key not in own.used and value not in (None, False, 0, "", []):
            raise own.error(key, f"is {value!r:.80}, which is not known here: it may mean another computation")
    return config


def own_fields(file: GgufFile) -> Fields:
    """Return the metadata of the file's architecture, without its name in front."""
    name = file.fields.data["general.architecture"]
    prefix = f"{name}."
    fields = {key.removeprefix(prefix): value for key, value in file.fields.data.items() if key.startswith(prefix)}
    return file.fields.below(name, fields)


def pooling_of(own: Fields) -> Pooling | None:
    """Return how a model of embeddings pools; None: the file does not say it. Raises ConfigError."""
    value = own.count(_POOLING, 0)
    if value == _RANK:
        raise own.error(_POOLING, f"is {value} (rank): scores of a reranker are not computed")
    if value not in _POOLINGS:
        ways = ", ".join(f"{number} ({way or 'none'})" for number, way in _POOLINGS.items())
        raise own.error(_POOLING, f"is {value}, which is not known here; known: {ways}")
    return _POOLINGS[value]


def _common(file: GgufFile, own: Fields, architecture: Architecture) -> dict[str, Any]:
    if EMBEDDING not in file.tensors:
        raise ConfigError(f"{file.path}: the tensor {EMBEDDING} is missing")
    hidden_size, heads = own.size("embedding_length"), own.size("attention.head_count")
    head_dim = own.size_or_null("attention.key_length") or hidden_size // heads
    own.must_be("attention.value_length", head_dim, "the size of keys")
    return {
        "architectures": [architecture.model],
        "model_type": architecture.model_type,
        "dtype": file.dtype(),
        "vocab_size": file.tensors[EMBEDDING].shape[0],
        "hidden_size": hidden_size,
        "intermediate_size": own.size("feed_forward_length"),
        "num_hidden_layers": own.size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": own.size("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": own.size("context_length"),
        "rms_norm_eps": own.positive("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": HEAD not in file.tensors,
    }


def _llama(file: GgufFile, own: Fields, config: dict[str, Any]) -> dict[str, Any]:
    window = own.size_or_null("attention.sliding_window")
    mistral = {} if window is None else {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    biases = {
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
    }
    return {
        "rope_parameters": rope_parameters(file, own, config["head_dim"]),
        **(biases if window is None else {"sliding_window": window}),
        **mistral,
    }


def _qwen2(file: GgufFile, own: Fields, config: dict[str, Any]) -> dict[str, Any]:
    return {"rope_parameters": rope_parameters(file, own, config["head_dim"]), "use_sliding_window": False}


def _qwen3(file: GgufFile, own: Fields, config: dict[str, Any]) -> dict[str, Any]:
    return _qwen2(file, own, config) | {"attention_bias": "blk.0.attn_q.bias" in file.tensors}


def _phi3(file: GgufFile, own: Fields, config: dict[str, Any]) -> dict[str, Any]:
    window = own.count("attention.sliding_window", 0)
    if "attention.sliding_window" not in own.data:
        raise own.error("attention.sliding_window", "is missing, as in files of 2024, and the window cannot be guessed")
    rope = rope_parameters(file, own, config["head_dim"], partial=True)
    original = rope.get("original_max_position_embeddings", config["max_position_embeddings"])
    return {
        "rope_parameters": rope,
        "sliding_window": window or None,
        "original_max_position_embeddings": original,
    }


def _gemma(own: Fields, config: dict[str, Any], largest: int) -> dict[str, Any]:
    """Return what both Gemmas have. ``largest``: the layers of the one size whose scale of scores is another."""
    head_dim, size = config["head_dim"], config["hidden_size"] // config["num_attention_heads"]
    return {
        "query_pre_attn_scalar": size if config["num_hidden_layers"] == largest else head_dim,
        "sliding_window": own.size("attention.sliding_window"),
        "hidden_activation": "gelu_pytorch_tanh",
    }


def _gemma2(file: GgufFile, own: Fields, config: dict[str, Any]) -> dict[str, Any]:
    return _gemma(own, config, 46) | {
        "attn_logit_softcapping": own.positive("attn_logit_softcapping"),
        "final_logit_softcapping": own.positive("final_logit_softcapping"),
        "rope_parameters": rope_parameters(file, own, config["head_dim"]),
    }


def _gemma3(file: GgufFile, own: Fields, config: dict[str, Any]) -> dict[str, Any]:
    own.must_be("attn_logit_softcapping", None)
    pattern = own.size("attention.sliding_window_pattern", 6)
    local = own.positive("rope.freq_base_swa", 10_000.0)
    return _gemma(own, config, 62) | {
        "layer_types": [SLIDING if (layer + 1) % pattern else FULL for layer in range(config["num_hidden_layers"])],
        "final_logit_softcapping": own.positive_or_null("final_logit_softcapping"),
        "rope_parameters": {
            FULL: rope_parameters(file, own, config["head_dim"], theta=REQUIRED),
            SLIDING: {"rope_type": "default", "rope_theta": local},
        },
    }


ARCHITECTURES = {
    "llama": Architecture(model="LlamaForCausalLM", model_type="llama", describe=_llama, rotated=True),
    "qwen2": Architecture(model="Qwen2ForCausalLM", model_type="qwen2", describe=_qwen2),
    "qwen3": Architecture(model="Qwen3ForCausalLM", model_type="qwen3", describe=_qwen3),
    "gemma2": Architecture(
        model="Gemma2ForCausalLM", model_type="gemma2", describe=_gemma2, modules=_SANDWICH, by_position=True
    ),
    "gemma3": Architecture(
        model="Gemma3ForCausalLM", model_type="gemma3_text", describe=_gemma3, modules=_SANDWICH, by_position=True
    ),
    "phi3": Architecture(
        model="Phi3ForCausalLM",
        model_type="phi3",
        describe=_phi3,
        modules={"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
        strips=True,
    ),
}
"""By ``general.architecture``."""
