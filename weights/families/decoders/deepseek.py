"""DeepSeek-V2 and -V3 (arXiv 2405.04434, 2412.19437), and GLM-4.7-Flash: latent attention, and experts next to shared
ones in all layers except the first."""

from math import log

from jaxgen.core.latent_config import LatentConfig
from jaxgen.core.layer_kind import LayerKind
from jaxgen.weights.families.family import (
    MOE_TRAINING,
    AttentionConfig,
    DecoderConfig,
    DecoderNames,
    DType,
    Family,
    JsonFields,
    MoEConfig,
    Parameter,
    PositionConfig,
    read_decoder,
    read_rope,
    replace,
    rope_fields,
)
from jaxgen.weights.families.row_orders import latent_queries, latent_row


def read_deepseek_v2(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description of a DeepSeek-V2, whose router takes a softmax and may choose groups by their best."""
    fields.must_be("mlp_bias", False)
    fields.must_be("norm_topk_prob", False, "transformers does not divide by the sum")
    fields.must_be("scoring_func", "softmax")
    latent = _read_latent(fields, query_rank=1536, plain=128, values=128)
    config = _read_attention(fields, dtype, latent, max_position=2048, eps=1e-6)
    by_groups = fields.choice("topk_method", "greedy", ("greedy", _BY_GROUPS)) == _BY_GROUPS
    groups, best = fields.size_or_null("n_group"), fields.size_or_null("topk_group")
    if by_groups and (groups is None or best is None):
        raise fields.error("n_group" if groups is None else "topk_group", f"must be a number for {_BY_GROUPS}")
    moe = MoEConfig(
        experts=fields.size("n_routed_experts", 64),
        per_token=fields.size("num_experts_per_tok"),
        inner=fields.size("moe_intermediate_size", 1407),
        renormalise=False,
        scale=fields.positive("routed_scaling_factor", 1.0),
        groups=groups or 1 if by_groups else 1,
        best_groups=best or 1 if by_groups else 1,
    )
    return with_experts(config, with_shared(fields, moe, 2), first_dense(fields, config.num_layers, 0))


def read_deepseek_v3(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description of a DeepSeek-V3."""
    latent = _read_latent(fields, query_rank=1536, plain=128, values=128)
    config = _read_attention(fields, dtype, latent, max_position=4096, eps=1e-6)
    moe = read_corrected(
        fields, experts=256, per_token=8, inner=2048, renormalise=True, scale=2.5, groups=8, best_groups=4
    )
    return with_experts(config, with_shared(fields, moe, 1), first_dense(fields, config.num_layers, 3))


def read_glm4_moe_lite(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description of a GLM-4.7-Flash."""
    latent = _read_latent(fields, query_rank=768, plain=192, values=256)
    config = _read_attention(fields, dtype, latent, max_position=202_752, eps=1e-5)
    moe = read_corrected(
        fields, experts=64, per_token=4, inner=1536, renormalise=True, scale=1.8, groups=1, best_groups=1
    )
    kinds = fields.by_layer("mlp_layer_types", config.num_layers, "'dense' and 'sparse'", _MLP_TYPES.__contains__)
    dense = first_dense(fields, config.num_layers, 1)
    if kinds is not None:
        dense = tuple([layer for layer, kind in enumerate(kinds) if kind == "dense"])
    return with_experts(config, with_shared(fields, moe, 1), dense)


def read_corrected(
    fields: JsonFields,
    *,
    experts: int,
    per_token: int,
    inner: int,
    renormalise: bool,
    scale: float,
    groups: int,
    best_groups: int,
) -> MoEConfig:
    """Return experts that are chosen by corrected sigmoids, of the best groups. Values are the family's defaults."""
    fields.must_be("scoring_func", "sigmoid")
    fields.must_be("topk_method", "noaux_tc")
    return MoEConfig(
        experts=fields.size("n_routed_experts", experts),
        per_token=fields.size("num_experts_per_tok", per_token),
        inner=fields.size("moe_intermediate_size", inner),
        scoring="sigmoid",
        corrected=True,
        renormalise=fields.boolean("norm_topk_prob", renormalise),
        least_sum=1e-20,
        scale=fields.positive("routed_scaling_factor", scale),
        groups=fields.size("n_group", groups),
        best_groups=fields.size("topk_group", best_groups),
    )


def with_shared(fields: JsonFields, moe: MoEConfig, count: int) -> MoEConfig:
    """Return the experts with the shared ones, which are one MLP of the width of all of them, if there are any."""
    shared = fields.count("n_shared_experts", count)
    return replace(moe, shared_inner=shared * moe.inner or None)


def first_dense(fields: JsonFields, num_layers: int, count: int) -> tuple[int, ...]:
    """Return the numbers of the layers with an MLP, which are the first. ``count``: the family's default."""
    fields.must_be("moe_layer_freq", 1)
    return tuple(range(min(num_layers, fields.count("first_k_dense_replace", count))))


def with_experts(config: DecoderConfig, moe: MoEConfig, dense: tuple[int, ...]) -> DecoderConfig:
    """Return the description with experts in all layers but the ``dense`` ones, if there are any."""
    return config if len(dense) == config.num_layers else replace(config, moe=moe, dense_layers=dense)


def _read_latent(fields: JsonFields, *, query_rank: int, plain: int, values: int) -> LatentConfig:
    fields.must_be("attention_bias", False)
    fields.must_be("rope_interleave", True)
    rotated = fields.size("qk_rope_head_dim", 64)
    if rotated % 2:
        raise fields.error("qk_rope_head_dim", f"must be an even number, not {rotated}: it is rotated in pairs")
    return LatentConfig(
        rank=fields.size("kv_lora_rank", 512),
        rotated=rotated,
        plain=fields.size("qk_nope_head_dim", plain),
        values=fields.size("v_head_dim", values),
        query_rank=fields.size_or_null("q_lora_rank", query_rank),
    )


def _read_attention(
    fields: JsonFields, dtype: DType, latent: LatentConfig, *, max_position: int, eps: float
) -> DecoderConfig:
    """Return the description without experts."""
    rope = read_rope(fields, fields.size("max_position_embeddings", max_position), latent.rotated)
    if rope.rotary_dim not in (None, latent.rotated):
        raise fields.error("partial_rotary_factor", "must be 1: all of qk_rope_head_dim is rotated")
    positions = PositionConfig(ropes=(replace(rope, rotary_dim=latent.rotated),))
    config = read_decoder(
        fields, dtype, max_position=max_position, head_dim=latent.rotated, eps=eps, positions=positions
    )
    if config.num_kv_heads != config.num_heads:
        raise fields.error("num_key_value_heads", f"must be num_attention_heads ({config.num_heads})")
    attention = AttentionConfig(scale=latent.query**-0.5 * _attention_factor(fields) ** 2)
    latents: LayerKind = "latent"
    return replace(
        config,
        num_kv_heads=1,
        head_dim=latent.row,
        latent=latent,
        layer_kinds=(latents,) * config.num_layers,
        attention=attention,
    )


def _attention_factor(fields: JsonFields) -> float:
    """Return what stretching the context multiplies queries and keys by, in addition to cosine and sine."""
    rope = rope_fields(fields)
    given = rope.positive_or_null("mscale_all_dim") if rope.data.get("mscale_all_dim") else None
    if given is None or rope.data.get("rope_type", rope.data.get("type", "default")) == "default":
        return 1.0
    factor = rope.positive("factor")
    return 0.1 * given * log(factor) + 1.0 if factor > 1 else 1.0


_BY_GROUPS = "group_limited_greedy"
_MLP_TYPES = ("dense", "sparse")
CORRECTED = DecoderNames(
    shared_gate_up=("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
    shared_down="mlp.shared_experts.down_proj",
)
"""Names of experts that are chosen by corrected scores, and of shared ones."""


def parameters(config: DecoderConfig) -> tuple[Parameter, ...]:
    """Return the table of parameters; queries are made of a latent, or at once."""
    assert config.latent is not None
    queries = "self_attn.q_proj" if config.latent.query_rank is None else "self_attn.q_b_proj"
    rows = {queries: latent_queries, "self_attn.kv_a_proj_with_mqa": latent_row}
    return replace(CORRECTED, rows=rows).table(config)


FAMILY = Family(
    name="deepseek",
    read={
        "DeepseekV2ForCausalLM": read_deepseek_v2,
        "DeepseekV3ForCausalLM": read_deepseek_v3,
        "Glm4MoeLiteForCausalLM": read_glm4_moe_lite,
    },
    parameters=parameters,
    ignored=(
        *MOE_TRAINING,
        "head_dim",
        "qk_head_dim",
        "ep_size",
        "seq_aux",
        "aux_loss_alpha",
        "num_nextn_predict_layers",
    ),
)
