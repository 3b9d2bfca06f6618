"""The configuration of a Gemma 4 in a GGUF file. Host only, no jax."""

from typing import Any

import numpy as np

from jaxgen.weights.families.config_fields import JsonFields
from jaxgen.weights.families.family import FULL, SLIDING
from jaxgen.weights.gguf.descriptions import KV_HEADS, GgufDescription
from jaxgen.weights.gguf.file import GgufFile
from jaxgen.weights.gguf.rope import FREQUENCIES

_WIDTHS, _SHARED = "feed_forward_length", "attention.shared_kv_layers"
_WIDTH, _VALUES, _ROTATED = "attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"
BY_LAYER = (_WIDTHS, KV_HEADS)
_TABLE = "per_layer_token_embd.weight"
_UNROTATED = 1e30
"""The factor of pairs that are not rotated."""


def rope(file: GgufFile, own: JsonFields, head_dim: int) -> dict[str, Any]:
    """Return ``rope_parameters``. Layers without a window rotate the first pairs of a head, which a tensor names."""
    own.must_be("rope.dimension_count", head_dim, "the size of a head")
    own.must_be(_ROTATED, own.get(_WIDTH), "the size of a head with a window")
    if FREQUENCIES not in file.tensors:
        raise own.error("rope.dimension_count", f"needs the tensor {FREQUENCIES}, which is missing")
    factors = file.tensors[FREQUENCIES].dequantised(np.float32)
    rotated = int((factors == 1).sum())
    wanted = np.array([1] * rotated + [_UNROTATED] * (head_dim // 2 - rotated), np.float32)
    if not np.array_equal(factors, wanted):
        raise own.error(
            "rope.dimension_count", f"has other numbers in the tensor {FREQUENCIES} than 1 and {_UNROTATED}"
        )
    return {
        FULL: {
            "rope_type": "proportional",
            "rope_theta": own.positive("rope.freq_base", 1_000_000.0),
            "partial_rotary_factor": 2 * rotated / head_dim,
        },
        SLIDING: {"rope_type": "default", "rope_theta": own.positive("rope.freq_base_swa", 10_000.0)},
    }


def describe(read: GgufDescription) -> dict[str, Any]:
    """Return what Gemma 4 has by layer, and the parts that not all sizes have."""
    own, tensors, types = read.own, read.file.tensors, read.layer_types()
    width = own.size(_WIDTH)
    own.must_be(_VALUES, width, "the size of keys")
    widths = {SLIDING: width, FULL: read.config["head_dim"]}
    heads = read.by_layer(KV_HEADS, "num_key_value_heads")
    full = f"blk.{types.index(FULL)}" if FULL in types else "blk"
    return {
        "head_dim": width,
        "layer_types": types,
        "per_layer_config": {
            str(layer): {"head_dim": widths[kind], "num_key_value_heads": heads[layer]}
            for layer, kind in enumerate(types)
        },
        "attention_k_eq_v": f"{full}.attn_k.weight" in tensors and f"{full}.attn_v.weight" not in tensors,
        "hidden_size_per_layer_input": own.count("embedding_length_per_layer_input", 0),
        **({"vocab_size_per_layer_input": tensors[_TABLE].shape[0]} if _TABLE in tensors else {}),
        **_readers(read),
        **_experts(own),
    }


def _readers(read: GgufDescription) -> dict[str, Any]:
    """Return how many of the last layers read keys and values of others, and whether their MLPs are twice as wide."""
    shared, widths = read.own.count(_SHARED, 0), read.by_layer(_WIDTHS, "intermediate_size")
    first, last = widths[0], widths[-1]
    own = len(widths) - shared
    if own < 1 or last not in (first, 2 * first) or widths != [first] * own + [last] * shared:
        raise read.own.error(_WIDTHS, f"must be one number, or twice that in the last {shared} layers, not {widths}")
    return {"num_kv_shared_layers": shared, "use_double_wide_mlp": last != first}


def _experts(own: JsonFields) -> dict[str, Any]:
    count = own.count("expert_count", 0)
    own.ignore("expert_feed_forward_length")  # which models without experts may have too
    if not count:
        return {"enable_moe_block": False}
    return {
        "enable_moe_block": True,
        "num_experts": count,
        "top_k_experts": own.size("expert_used_count"),
        "moe_intermediate_size": own.size("expert_feed_forward_length"),
    }
