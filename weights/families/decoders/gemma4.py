"""The text of Gemma 4: as Gemma 3, and layers without a window have heads of another shape, whose keys may be values.
The larger ones have experts next to the MLP; the smaller ones have embeddings for each layer, and last layers that read
the keys and values of earlier ones."""

from collections.abc import Mapping
from functools import partial
from math import sqrt
from typing import Any

from jaxgen.core.layer_kind import HeadShape, LayerEmbedding, LayerKind
from jaxgen.weights.families.family import (
    BOTH_WAYS,
    FULL,
    SLIDING,
    AttentionConfig,
    DecoderConfig,
    DecoderNames,
    DType,
    Family,
    HeadConfig,
    JsonFields,
    MLPConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
    RopeConfig,
    read_layer_types,
    read_rope,
    read_sizes,
    windows_of,
)

_KINDS: dict[str, tuple[LayerKind, LayerKind]] = {SLIDING: ("attention", "reader"), FULL: ("global", "global_reader")}
"""The kind of the layers of a type that have keys and values, and the kind of their readers."""
_OF_HEADS = ("head_dim", "num_key_value_heads")
_ROPES = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}
"""Where a file names none."""


def read_gemma4(
    fields: JsonFields, dtype: DType, *, max_position: int = 131_072, window: int = 512, embedding: int = 256
) -> DecoderConfig:
    """Return the description. ``max_position``, ``window``, ``embedding``: the defaults of their fields.

    ``embedding``: numbers of a layer's own embedding of a token.
    """
    sizes = read_sizes(
        fields, dtype, vocab_size=262_144, num_heads=8, max_position=max_position, kv_heads=4, head_dim=256
    )
    fields.choice("hidden_activation", "gelu_pytorch_tanh", ("gelu_pytorch_tanh",))
    if fields.get("use_bidirectional_attention") != "vision":  # of images alone
        fields.must_be("use_bidirectional_attention", False, BOTH_WAYS)
    norm = NormConfig(eps=fields.positive("rms_norm_eps", 1e-6), scale_in_float32=True)
    types = _types(fields, sizes["num_layers"])
    shapes = _shapes(fields, sizes, types)
    wide_mlp = fields.boolean("use_double_wide_mlp", False)
    bias, shared = fields.boolean("attention_bias", False), _shared(fields, types)
    kinds = tuple([_KINDS[kind][layer >= len(types) - shared] for layer, kind in enumerate(types)])
    return DecoderConfig(
        **sizes | shapes,
        windows=windows_of(types, fields.size("sliding_window", window)),
        norm=norm,
        positions=_positions(fields, sizes, types, shapes["global_heads"]),
        placement="sandwich",
        layer_kinds=kinds,
        attention=AttentionConfig(qkv_bias=bias, out_bias=bias, scale=1.0, qk_norm=norm, v_norm=True),
        reader_inner=2 * sizes["intermediate_size"] if wide_mlp and shared else None,
        layer_embedding=_layer_embedding(fields, sizes["vocab_size"], embedding),
        mlp=MLPConfig(activation="gelu_tanh"),
        moe=_experts(fields, sizes["intermediate_size"]),
        head=HeadConfig(
            tied=fields.boolean("tie_word_embeddings", True),
            soft_cap=fields.positive_or_null("final_logit_softcapping"),
        ),
        embed_scale=sqrt(sizes["hidden_size"]),
        layer_scale=True,
    )


def _types(fields: JsonFields, num_layers: int) -> tuple[str, ...]:
    """Return the type of each layer; the last is always FULL."""
    types = read_layer_types(fields, num_layers, lambda layer: (layer + 1) % 6 != 0)
    return (*types[:-1], FULL)


def _shapes(fields: JsonFields, sizes: Mapping[str, Any], types: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of the description that say the shapes of heads.

    ``per_layer_config`` names them by layer, and in older files ``global_head_dim`` and ``num_global_key_value_heads``
    those of layers without a window.
    """
    given = sizes["head_dim"], sizes["num_kv_heads"]
    equal = fields.boolean("attention_k_eq_v", False)
    old = fields.size("global_head_dim", 512), fields.size_or_null("num_global_key_value_heads")
    listed = fields.get("per_layer_config")
    if listed is None:
        of_types = {SLIDING: given, FULL: (old[0], old[1] if equal and old[1] is not None else given[1])}
    else:
        of_types = {kind: _listed(fields, listed, types, kind, given) for kind in (SLIDING, FULL)}
    (width, heads), (wide, wide_heads) = of_types[SLIDING], of_types[FULL]
    shape = HeadShape(kv_heads=wide_heads, head_dim=wide, keys_are_values=equal)
    return {"head_dim": width, "num_kv_heads": heads, "global_heads": shape}


def _listed(
    fields: JsonFields, listed: Any, types: tuple[str, ...], kind: str, given: tuple[int, int]
) -> tuple[int, int]:
    """Return the head size and the number of KV heads of all layers of a type. Raises ConfigError if they differ."""
    name = "per_layer_config"
    entries = listed.items() if isinstance(listed, dict) else [("", None)]
    if not all(key.isdecimal() and isinstance(one, dict) for key, one in entries):
        raise fields.error(name, f"must be an object with an object for each layer's number, not {listed!r:.80}")
    by_layer = {int(key): fields.below(name, one) for key, one in listed.items()}
    if others := {field for one in by_layer.values() for field in one.data} - {*_OF_HEADS}:
        raise fields.error(name, f"has {', '.join(sorted(others))}; supported: {', '.join(_OF_HEADS)}")
    of_layers = [by_layer.get(layer) for layer, found in enumerate(types) if found == kind]
    found = {
        given if one is None else tuple([one.size(*each) for each in zip(_OF_HEADS, given, strict=True)])
        for one in of_layers
    }
    if len(found) > 1:
        raise fields.error(name, f"has layers of type {kind} with different heads, which is not supported")
    width, heads = found.pop() if found else given
    return width, heads


def _shared(fields: JsonFields, types: tuple[str, ...]) -> int:
    """Return how many of the last layers read keys and values of others."""
    name = "num_kv_shared_layers"
    shared = fields.count(name, 0)
    if shared and not {*types[-shared:]} <= {*types[:-shared]}:
        raise fields.error(name, f"is {shared}: the other {len(types) - shared} layers must have a layer of each type")
    return shared


def _positions(fields: JsonFields, sizes: Mapping[str, Any], types: tuple[str, ...], wide: HeadShape) -> PositionConfig:
    ropes = fields.get("rope_parameters")
    if ropes is None:
        ropes = _ROPES
    elif missing := [kind for kind in {*types} if not isinstance(ropes, dict) or not isinstance(ropes.get(kind), dict)]:
        raise fields.error("rope_parameters", f"must have an object for {missing[0]!r}")
    fields = JsonFields({**fields.data, "rope_parameters": ropes}, fields.source, fields.used)
    read = partial(read_rope, fields, sizes["max_position"])
    local = read(sizes["head_dim"], part=SLIDING) if SLIDING in types else RopeConfig()
    full = read(wide.head_dim, part=FULL, partial=1.0)
    return PositionConfig(ropes=(local, full), layer_ropes=tuple(int(kind == FULL) for kind in types))


def _layer_embedding(fields: JsonFields, vocab_size: int, default: int) -> LayerEmbedding | None:
    width = fields.count("hidden_size_per_layer_input", default)
    rows = fields.count("vocab_size_per_layer_input", 262_144)
    if not width:
        return None
    if rows < vocab_size:
        raise fields.error("vocab_size_per_layer_input", f"({rows}) must be at least vocab_size ({vocab_size})")
    return LayerEmbedding(vocab_size=rows, width=width)


def _experts(fields: JsonFields, inner: int) -> MoEConfig | None:
    if not fields.boolean("enable_moe_block", False):
        fields.ignore("num_experts", "top_k_experts", "moe_intermediate_size")
        return None
    return MoEConfig(
        experts=fields.size("num_experts"),
        per_token=fields.size("top_k_experts"),
        inner=fields.size("moe_intermediate_size"),
        shared_inner=inner,
        norms=True,
        activation="gelu_tanh",
    )


FAMILY = Family(
    name="gemma4",
    read={
        "Gemma4ForCausalLM": read_gemma4,
        "Gemma4UnifiedForCausalLM": partial(read_gemma4, max_position=262_144, window=1024, embedding=0),
    },
    parameters=DecoderNames(
        attn_post_norm="post_attention_layernorm",
        mlp_norm="pre_feedforward_layernorm",
        mlp_post_norm="post_feedforward_layernorm",
        router="router.proj",
        stacked_gate_up="experts.gate_up_proj",
        stacked_down="experts.down_proj",
        expert_gate_up=("experts.{expert}.gate_proj", "experts.{expert}.up_proj"),
        expert_down="experts.{expert}.down_proj",
        shared_gate_up=("mlp.gate_proj", "mlp.up_proj"),
        shared_down="mlp.down_proj",
        moe_norms={
            "shared": "pre_feedforward_layernorm.weight",
            "shared_post": "post_feedforward_layernorm_1.weight",
            "router": "router.scale",
            "experts": "pre_feedforward_layernorm_2.weight",
            "experts_post": "post_feedforward_layernorm_2.weight",
        },
    ).table,
)
