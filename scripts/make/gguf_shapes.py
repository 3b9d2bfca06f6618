"""What GGUF files of the benchmarks' shapes have: metadata, and the shapes of tensors.

Names and shapes of tensors come from the table of jaxgen's own reader. llama.cpp has its own, and shows that they are
right.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.weights.gguf.architectures import ARCHITECTURES
from jaxgen.weights.gguf.descriptions import SIGMOID
from jaxgen.weights.gguf.names import parts_of
from tests.support.hub_configs import read

Values = dict[str, Any]
FLOATS = ("ffn_gate_inp.weight", "ssm_conv1d.weight", "shortconv.conv.weight")
"""Ends of the names of matrices that are always float32."""


def _plain(model: DecoderConfig, config: Values) -> Values:
    """Nothing but what all architectures have."""
    del model, config
    return {}


def _convolutions(model: DecoderConfig, config: Values) -> Values:
    """LFM2, whose layers without attention have no heads of keys and values."""
    del config
    attention = model.layers_of_kind("attention")
    heads = [model.num_kv_heads if layer in attention else 0 for layer in range(model.num_layers)]
    return {"attention.head_count_kv": heads}


def _delta_nets(model: DecoderConfig, config: Values) -> Values:
    """Qwen3.5, whose every fourth layer has attention, and the sections of whose positions are alike for texts."""
    assert model.delta is not None
    rotated = config["rope_parameters"]["mrope_section"]
    return {
        "ssm.inner_size": model.delta.values,
        "full_attention_interval": 1 + model.layers_of_kind("attention")[0],
        "rope.dimension_sections": [*rotated, 0],
    }


def _latent(model: DecoderConfig, config: Values) -> Values:
    """GLM-4.7-Flash, whose cache has one row of a latent and a rotated key for all heads."""
    assert model.latent is not None
    return {
        "attention.value_length": model.latent.rank,
        "attention.key_length_mla": config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "attention.value_length_mla": config["v_head_dim"],
        "attention.q_lora_rank": config["q_lora_rank"],
        "leading_dense_block_count": len(model.dense_layers),
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_gating_func": SIGMOID,
    }


@dataclass(frozen=True)
class Described:
    """``name``: of the architecture. ``more``: gives metadata that no field of config.json is. ``stored``: tensors of a
    layer which other files have under other names."""

    name: str
    more: Callable[[DecoderConfig, Values], Values] = _plain
    stored: tuple[str, ...] = ()


OF_MODELS = {
    "LlamaForCausalLM": Described("llama"),
    "Qwen3ForCausalLM": Described("qwen3"),
    "Lfm2ForCausalLM": Described("lfm2", _convolutions),
    "Qwen3_5ForCausalLM": Described("qwen35", _delta_nets),
    "Glm4MoeLiteForCausalLM": Described("deepseek2", _latent, ("attn_q_a", "attn_kv_a_mqa")),
}
"""By the value of ``architectures`` in config.json."""


def is_described(config: Values) -> bool:
    """Whether files of a shape, given by the fields of config.json, can be made."""
    return config["architectures"][0] in OF_MODELS


def described(config: Values) -> Described:
    return OF_MODELS[config["architectures"][0]]


def metadata(config: Values, context: int) -> Values:
    """Return the metadata of a file, without the name of the architecture in front."""
    model, own = read(config), described(config)
    architecture, rope = ARCHITECTURES[own.name], model.positions.ropes[0]
    return {
        "context_length": context,
        "embedding_length": model.hidden_size,
        "block_count": model.num_layers,
        "feed_forward_length": model.intermediate_size,
        "attention.head_count": model.num_heads,
        "attention.head_count_kv": model.num_kv_heads,
        "attention.key_length": model.head_dim,
        "attention.value_length": model.head_dim,
        architecture.eps: model.norm.eps,
        "rope.freq_base": rope.theta,
        "rope.dimension_count": rope.rotary_dim or model.head_dim,
        "vocab_size": model.vocab_size,
        **{key: config[name] for key, name in architecture.sizes.items()},
        **own.more(model, config),
    }


def tensors(config: Values) -> dict[str, tuple[int, ...]]:
    """Return the shape [..., out, in] of each tensor of a file."""
    model, own = read(config), described(config)
    architecture = ARCHITECTURES[own.name]
    stored = {f"blk.{layer}.{name}.weight" for layer in range(model.num_layers) for name in own.stored}
    parts = parts_of(model, stored, architecture.renamed, architecture.orders)
    return {name: size for part in parts.values() for name, size in zip(part.names, part.shapes, strict=True)}
