"""What no row of the table of architectures says: fields of config.json that follow from others. Host only, no jax."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxgen.weights.families.config_fields import JsonFields
from jaxgen.weights.families.family import FULL, LINEAR, SLIDING
from jaxgen.weights.gguf.file import GgufFile
from jaxgen.weights.gguf.rope import LOG_MULTIPLIER, rope_parameters

Q_NORM = "blk.0.attn_q_norm.weight"
_SHARED_WIDTH = "expert_shared_feed_forward_length"
_QUERY_SCALE = "attention.temperature_scale"
SOFTMAX, SIGMOID = 1, 2
"""Values of ``expert_gating_func``, by llama.cpp's numbers."""
KV_HEADS, RECURRENT = "attention.head_count_kv", "attention.recurrent_layers"
_SLIDES = "attention.sliding_window_pattern"


@dataclass(frozen=True, slots=True)
class GgufDescription:
    """What was read of a file so far, for the functions below, which architectures name.

    ``own``: the metadata of its architecture, without its name in front. ``config``: the fields of config.json that
    follow from a row.
    """

    file: GgufFile
    own: JsonFields
    config: Mapping[str, Any]

    def by_layer(self, key: str, name: str) -> list[Any]:
        """Return what the file has for each layer, in a list; else the field ``name`` of config.json for all layers."""
        fields = self.file.fields.data
        value = fields.get(f"{fields['general.architecture']}.{key}")
        return value if isinstance(value, list) else [self.config[name]] * self.config["num_hidden_layers"]

    def layer_types(self) -> list[str]:
        """Return the type of each layer by a list that says which have a window. Raises ConfigError for another."""
        slides = self.own.get(_SLIDES)
        if not isinstance(slides, list) or len(slides) != self.config["num_hidden_layers"]:
            raise self.own.error(_SLIDES, f"must be a list with an entry by layer, not {slides!r:.80}")
        return [SLIDING if slide else FULL for slide in slides]


def llama(read: GgufDescription) -> dict[str, Any]:
    """Llama, Mistral, which has a window, or Mixtral, which has experts."""
    window = read.own.size_or_null("attention.sliding_window")
    if read.own.count("expert_count", 0):
        experts = {
            "num_local_experts": read.own.size("expert_count"),
            "num_experts_per_tok": read.own.size("expert_used_count"),
        }
        result = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "sliding_window": window} | experts
    elif window is not None:
        result = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": window}
    else:
        return {}
    return result | {"attention_bias": None, "mlp_bias": None}


def mistral3(read: GgufDescription) -> dict[str, Any]:
    """Ministral 3 or, without the scale of its queries, the text of a Mistral 3."""
    if read.own.get(_QUERY_SCALE) is not None:
        return {}
    return {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}


def mistral3_rope(file: GgufFile, own: JsonFields, head_dim: int) -> dict[str, Any]:
    both, beta = own.positive_or_null(LOG_MULTIPLIER), own.positive_or_null(_QUERY_SCALE)
    rope = rope_parameters(file, own, head_dim, yarn={} if both is None else {"mscale": 1.0, "mscale_all_dim": both})
    return rope | ({} if beta is None else {"llama_4_scaling_beta": beta})


def phi3(read: GgufDescription) -> dict[str, Any]:
    if "attention.sliding_window" not in read.own.data:
        raise read.own.error(
            "attention.sliding_window", "is missing, as in files of 2024: use a file of a newer converter"
        )
    original = read.config["rope_parameters"].get(
        "original_max_position_embeddings", read.config["max_position_embeddings"]
    )
    window = read.own.count("attention.sliding_window", 0)
    return {"sliding_window": window or None, "original_max_position_embeddings": original}


def _gemma(config: Mapping[str, Any], largest: int) -> dict[str, Any]:
    """Return what both Gemmas have. ``largest``: the layers of the one size whose scale of scores is another."""
    head_dim, size = config["head_dim"], config["hidden_size"] // config["num_attention_heads"]
    return {"query_pre_attn_scalar": size if config["num_hidden_layers"] == largest else head_dim}


def gemma2(read: GgufDescription) -> dict[str, Any]:
    caps = ("attn_logit_softcapping", "final_logit_softcapping")
    return _gemma(read.config, 46) | {name: read.own.positive(name) for name in caps}


def gemma3(read: GgufDescription) -> dict[str, Any]:
    read.own.must_be("attn_logit_softcapping", None)
    pattern = read.own.size("attention.sliding_window_pattern", 6)
    local = read.own.positive("rope.freq_base_swa", 10_000.0)
    return _gemma(read.config, 62) | {
        "layer_types": [
            SLIDING if (layer + 1) % pattern else FULL for layer in range(read.config["num_hidden_layers"])
        ],
        "rope_parameters": {
            FULL: read.config["rope_parameters"],
            SLIDING: {"rope_type": "default", "rope_theta": local},
        },
    }


def gpt_oss(read: GgufDescription) -> dict[str, Any]:
    width = read.config["intermediate_size"]
    read.own.must_be("expert_feed_forward_length", width, "experts are as wide as feed_forward_length says")
    return {}


def olmo2(read: GgufDescription) -> dict[str, Any]:
    """OLMo 2 or, with windows, OLMo 3, whose layers with one are not extended."""
    window = read.own.size_or_null("attention.sliding_window")
    if window is None:
        return {}
    theta = read.own.positive("rope.freq_base_swa", read.config["rope_parameters"]["rope_theta"])
    local = {"rope_type": "default", "rope_theta": theta}
    return {
        "architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3",
        "sliding_window": window,
        "layer_types": read.layer_types(),
        "rope_parameters": {FULL: read.config["rope_parameters"], SLIDING: local},
    }


def falcon(read: GgufDescription) -> dict[str, Any]:
    kv_heads, heads = read.config["num_kv_heads"], read.config["num_attention_heads"]
    if kv_heads == heads:
        raise read.own.error(
            "attention.head_count_kv", f"is {kv_heads}, as many as heads: such a Falcon is not converted"
        )
    norms = 2 if "blk.0.attn_norm_2.weight" in read.file.tensors else 1
    return {"new_decoder_architecture": kv_heads > 1, "multi_query": True, "num_ln_in_parallel_attn": norms}


def granite(read: GgufDescription) -> dict[str, Any]:
    """Granite 3 or, with the width of a shared MLP, a dense Granite 4, which may have no positions."""
    width, rotated = read.own.size_or_null(_SHARED_WIDTH), read.own.boolean("rope.scaling.finetuned", True)
    if width is None and rotated:
        return {}
    return {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "shared_intermediate_size": width or read.config["intermediate_size"],
        "num_local_experts": 0,
        "layer_types": ["attention"] * read.config["num_hidden_layers"],
        "position_embedding_type": "rope" if rotated else "nope",
    }


def exaone4(read: GgufDescription) -> dict[str, Any]:
    window, layers = read.own.size_or_null("attention.sliding_window"), read.config["num_hidden_layers"]
    if window is None:
        return {"sliding_window": None}
    slides = read.own.get("attention.sliding_window_pattern")
    if not isinstance(slides, list):
        period = read.own.size("attention.sliding_window_pattern", 4)
        slides = [(layer + 1) % period for layer in range(layers)]
    return {"sliding_window": window, "layer_types": [SLIDING if slide else FULL for slide in slides]}


def command_r(read: GgufDescription) -> dict[str, Any]:
    return {"use_qk_norm": Q_NORM in read.file.tensors}


def stablelm(read: GgufDescription) -> dict[str, Any]:
    """StableLM, whose 12B has no norm before its MLPs: they follow the same norm as attention."""
    parallel = "blk.0.ffn_norm.weight" not in read.file.tensors
    return {"use_parallel_residual": parallel, "qk_layernorm": Q_NORM in read.file.tensors}


def nemotron(read: GgufDescription) -> dict[str, Any]:
    """Half of each head is rotated; the converter counts it as if heads were as wide as the layers by their number."""
    counted = read.config["hidden_size"] // 2 // read.config["num_attention_heads"]
    if read.own.get("rope.dimension_count") != counted:
        return {}
    return {"rope_parameters": {**read.config["rope_parameters"], "partial_rotary_factor": 0.5}}


def lfm2(read: GgufDescription) -> dict[str, Any]:
    """LFM2, whose layers without attention have no heads of keys and values, and whose width is given as it is."""
    types = [FULL if count else "conv" for count in read.by_layer(KV_HEADS, "num_key_value_heads")]
    return {"layer_types": types, "block_auto_adjust_ff_dim": False}


def lfm2_moe(read: GgufDescription) -> dict[str, Any]:
    """LFM2 with experts, which are chosen by sigmoids, corrected if a file has the corrections."""
    read.own.must_be("expert_gating_func", SIGMOID, "experts are chosen by sigmoids")
    return {"layer_types": lfm2(read)["layer_types"], "use_expert_bias": is_corrected(read)}


def is_corrected(read: GgufDescription) -> bool:
    """Return whether routers have corrections, which choose experts but do not weigh them."""
    return any(name.endswith(".exp_probs_b.bias") for name in read.file.tensors)


def gated_delta_nets(read: GgufDescription) -> dict[str, Any]:
    """Layers with gated delta nets, and those with attention: every fourth, unless a file says otherwise."""
    layers, interval = read.config["num_hidden_layers"], read.own.size("full_attention_interval", 4)
    recurrent = read.own.get(RECURRENT)
    if recurrent is None:
        recurrent = [(layer + 1) % interval for layer in range(layers)]
    if not isinstance(recurrent, list) or len(recurrent) < layers:
        raise read.own.error(RECURRENT, f"must be a list with an entry by layer, not {recurrent!r:.80}")
    values, heads = read.own.size("ssm.inner_size"), read.config["linear_num_value_heads"]
    if values % heads:
        raise read.own.error("ssm.inner_size", f"({values}) must be a multiple of ssm.time_step_rank ({heads})")
    types = [LINEAR if is_recurrent else FULL for is_recurrent in recurrent[:layers]]
    return {"layer_types": types, "linear_value_head_dim": values // heads}
