"""Architectures with experts as DeepSeek's, which mostly corrected scores choose. Host only, no jax."""

from functools import partial
from typing import Any

from jaxgen.weights.families.config_fields import JsonFields
from jaxgen.weights.families.row_orders import latent_queries, latent_row
from jaxgen.weights.gguf.architecture import AFTER_ATTENTION, ENDS, GLM_ENDS, OF_IMAGES, Architecture
from jaxgen.weights.gguf.descriptions import Q_NORM, SIGMOID, SOFTMAX, GgufDescription, is_corrected
from jaxgen.weights.gguf.file import GgufFile
from jaxgen.weights.gguf.names import Orders
from jaxgen.weights.gguf.rope import LOG_MULTIPLIER, rope_parameters

_LEADING, _SHARED = "leading_dense_block_count", "expert_shared_count"
_INNER = {"expert_feed_forward_length": "moe_intermediate_size"}
_ROUTED = {"expert_count": "n_routed_experts", "expert_used_count": "num_experts_per_tok", **_INNER}


def _groups(read: GgufDescription) -> dict[str, Any]:
    """Return experts as DeepSeek's config.json has them; what a file does not say is as llama.cpp takes it."""
    own = read.own
    return {
        "first_k_dense_replace": own.count(_LEADING, 0),
        "n_shared_experts": own.count(_SHARED, 0),
        "routed_scaling_factor": own.positive("expert_weights_scale", 1.0),
        "norm_topk_prob": own.boolean("expert_weights_norm", False),
        "n_group": own.size("expert_group_count", 1),
        "topk_group": own.size("expert_group_used_count", 1),
    }


def _experts(read: GgufDescription) -> dict[str, Any]:
    """Experts next to shared ones, in all but the first layers, which corrected sigmoids choose."""
    read.own.must_be("expert_gating_func", SIGMOID, "experts are chosen by sigmoids")
    return _groups(read)


def _glm4_moe(read: GgufDescription) -> dict[str, Any]:
    return _experts(read) | {"use_qk_norm": Q_NORM in read.file.tensors}


def _ernie4_5_moe(read: GgufDescription) -> dict[str, Any]:
    """ERNIE 4.5 with experts, which corrected softmaxes choose."""
    own = read.own
    own.must_be("expert_gating_func", SOFTMAX, "experts are chosen by softmaxes")
    return {
        "moe_layer_start_index": own.count(_LEADING, 0),
        "moe_layer_interval": own.size("interleave_moe_layer_step", 1),
        "moe_num_shared_experts": own.count(_SHARED, 0),
    }


def _latent_rope(file: GgufFile, own: JsonFields, head_dim: int) -> dict[str, Any]:
    """Return the rotary embedding of the parts of a head that have one; the factor of yarn is that of scores too."""
    del head_dim
    tenth = own.positive_or_null(LOG_MULTIPLIER)
    both = None if tenth is None else round(10 * tenth, 6)
    yarn = {} if both is None else {"mscale": both, "mscale_all_dim": both}
    return rope_parameters(file, own, own.size("rope.dimension_count"), yarn=yarn)


def _deepseek(read: GgufDescription) -> dict[str, Any]:
    """DeepSeek-V3 or GLM-4.7-Flash, which compute the same, or DeepSeek-V2, without corrections.

    Files of 2024 have the sizes of keys and values where newer ones have those of the latent.
    """
    own, rotated = read.own, read.config["qk_rope_head_dim"]
    newer = bool(own.get("attention.key_length_mla"))
    key, value = (f"attention.{name}_length{'_mla' if newer else ''}" for name in ("key", "value"))
    keys = own.size(key)
    if keys <= rotated:
        raise own.error(key, f"must be more than rope.dimension_count ({rotated}), not {keys}")
    if newer:
        rank = read.config["kv_lora_rank"]
        own.must_be("attention.key_length", rank + rotated, "the size of a latent's row")
        own.must_be("attention.value_length", rank, "the size of a latent")
    result = {
        "qk_nope_head_dim": keys - rotated,
        "v_head_dim": own.size(value),
        "q_lora_rank": own.size_or_null("attention.q_lora_rank"),
        **_groups(read),
    }
    if is_corrected(read):
        own.must_be("expert_gating_func", SIGMOID, "corrected scores are sigmoids")
        return result
    own.must_be("expert_gating_func", SOFTMAX, "scores without corrections are softmaxes")
    method = "group_limited_greedy" if result["n_group"] > 1 else "greedy"
    return result | {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "topk_method": method,
    }


CORRECTED: dict[str, Architecture] = {
    "glm4moe": Architecture(
        model="Glm4MoeForCausalLM",
        model_type="glm4_moe",
        sizes=_ROUTED,
        biases={"attention_bias": "attn_q"},
        rope=partial(rope_parameters, partial=True),
        ignored=OF_IMAGES,
        describe=_glm4_moe,
        renamed=AFTER_ATTENTION,
        end_tokens=GLM_ENDS,
    ),
    "deepseek2": Architecture(
        model="DeepseekV3ForCausalLM",
        model_type="deepseek_v3",
        spelled={"head_dim": None, "num_key_value_heads": None},
        sizes=_ROUTED | {"attention.kv_lora_rank": "kv_lora_rank", "rope.dimension_count": "qk_rope_head_dim"},
        rope=_latent_rope,
        describe=_deepseek,
        latent=True,
        renamed={"layers.attn.q_norm": (("attn_q_a_norm",),)},
        orders=Orders(rows={"attn_q": latent_queries, "attn_q_b": latent_queries, "attn_kv_a_mqa": latent_row}),
        end_tokens=(*ENDS, *GLM_ENDS),
    ),
    "dots1": Architecture(
        model="Dots1ForCausalLM",
        model_type="dots1",
        sizes=_ROUTED,
        fixed={"sliding_window": None},
        describe=_experts,
    ),
    "ernie4_5-moe": Architecture(
        model="Ernie4_5_MoeForCausalLM",
        model_type="ernie4_5_moe",
        sizes={"expert_count": "moe_num_experts", "expert_used_count": "moe_k", **_INNER},
        ignored=("expert_shared_feed_forward_length",),
        describe=_ernie4_5_moe,
        orders=Orders(rotated=True),
    ),
}
"""By ``general.architecture``."""
