"""Qwen3.5, 3.6 and 3.8: most layers are gated delta nets (arXiv 2412.06464); the others have attention whose heads are
gated, and of which a quarter is rotated."""

from typing import Any

from jaxgen.core.layer_kind import GatedDeltaConfig, LayerKind
from jaxgen.weights.families.family import (
    FULL,
    LINEAR,
    MOE_TRAINING,
    DecoderConfig,
    DecoderNames,
    DType,
    Family,
    JsonFields,
    MoEConfig,
    read_decoder,
    replace,
)
from jaxgen.weights.families.row_orders import gated_queries


def read_qwen3_5(fields: JsonFields, dtype: DType, *, kv_heads: int = 4, **parts: Any) -> DecoderConfig:
    """Return the description of a Qwen3.5, or of a model with other ``parts``, as for ``read_decoder``.

    ``kv_heads``: the default.
    """
    fields.must_be("attn_output_gate", True)
    fields.must_be("output_gate_type", "swish")
    config = read_decoder(
        fields,
        dtype,
        max_position=32_768,
        kv_heads=kv_heads,
        head_dim=256,
        scale_in_float32=True,
        attention_bias=False,
        partial=0.25,
        **parts,
    )
    kinds, delta = _kinds(fields, config.num_layers), _read_delta(fields)
    return replace(
        config,
        attention=replace(config.attention, qk_norm=config.norm, output_gate=True),
        layer_kinds=kinds if "delta" in kinds else (),
        delta=delta if "delta" in kinds else None,
    )


def _read_delta(fields: JsonFields) -> GatedDeltaConfig:
    taps = fields.size("linear_conv_kernel_dim", 4)
    if taps == 1:
        raise fields.error("linear_conv_kernel_dim", "must be at least 2, not 1")
    return GatedDeltaConfig(
        key_heads=fields.size("linear_num_key_heads", 16),
        heads=fields.size("linear_num_value_heads", 32),
        key_dim=fields.size("linear_key_head_dim", 128),
        value_dim=fields.size("linear_value_head_dim", 128),
        taps=taps,
    )


def _kinds(fields: JsonFields, num_layers: int) -> tuple[LayerKind, ...]:
    """Return the kind of each layer. Raises ConfigError if none has attention."""
    interval = fields.size("full_attention_interval", 4)
    wanted = f"{FULL!r} and {LINEAR!r}"
    types = fields.by_layer("layer_types", num_layers, wanted, lambda kind: kind in (FULL, LINEAR))
    types = types or tuple(LINEAR if (layer + 1) % interval else FULL for layer in range(num_layers))
    if FULL not in types:
        raise fields.error("layer_types", f"must have {FULL!r} for a layer at least: without one there is no KV cache")
    return tuple(["attention" if kind == FULL else "delta" for kind in types])


def read_with_experts(
    fields: JsonFields,
    dtype: DType,
    experts: int,
    per_token: int,
    *,
    renormalise: bool = True,
    inner: int | None = None,
) -> DecoderConfig:
    """Return the description of a model with experts. ``experts``, ``per_token``, ``inner``: the defaults.

    ``inner``: width of MLPs, which no Qwen3.5 has; None: that of an expert.
    """
    moe = MoEConfig(
        experts=fields.size("num_experts", experts),
        per_token=fields.size("num_experts_per_tok", per_token),
        inner=fields.size("moe_intermediate_size", 512),
        renormalise=renormalise,
        shared_inner=fields.size("shared_expert_intermediate_size", 512),
        shared_gate=True,
    )
    given = {"intermediate_size": inner or moe.inner} | dict(fields.data)
    with_width = JsonFields(given, fields.source, fields.used)
    return read_qwen3_5(with_width, dtype, kv_heads=2, moe=moe)


def read_qwen3_5_moe(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description of a Qwen3.5 with experts."""
    fields.must_be("norm_topk_prob", True)
    return read_with_experts(fields, dtype, 256, 8)


IGNORED = (*MOE_TRAINING, "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype")
"""What trains experts, predicts tokens further on, or says how others keep states: here always in float32."""

FAMILY = Family(
    name="qwen3_5",
    read={"Qwen3_5ForCausalLM": read_qwen3_5, "Qwen3_5MoeForCausalLM": read_qwen3_5_moe},
    parameters=DecoderNames(rows={"self_attn.q_proj": gated_queries}, norm_plus=1.0).table,
    ignored=(*IGNORED, "mlp_only_layers"),
)
