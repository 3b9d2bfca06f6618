"""ERNIE 4.5 with experts: rotary pairs that are neighbours, and experts that a corrected softmax chooses, next to
shared ones."""

from jaxgen.weights.families.decoders.deepseek import CORRECTED, with_experts
from jaxgen.weights.families.family import (
    INTERLEAVED,
    MOE_TRAINING,
    DecoderConfig,
    DType,
    Family,
    JsonFields,
    MoEConfig,
    read_decoder,
    replace,
)


def read_ernie4_5_moe(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    fields.must_be("use_bias", False)
    fields.must_be("moe_norm_min", 1e-12)
    config = read_decoder(fields, dtype, max_position=131_072, kv_heads=4, eps=1e-5, theta=500_000.0, tied=True)
    inner = fields.size("moe_intermediate_size", 1536)
    moe = MoEConfig(
        experts=fields.size("moe_num_experts", 64),
        per_token=fields.size("moe_k", 6),
        inner=inner,
        corrected=True,
        shared_inner=fields.count("moe_num_shared_experts", 2) * inner or None,
    )
    return with_experts(config, moe, _dense(fields, config.num_layers))


def _dense(fields: JsonFields, num_layers: int) -> tuple[int, ...]:
    """Return the numbers of the layers with an MLP."""
    start, interval = fields.count("moe_layer_start_index", 1), fields.size("moe_layer_interval", 1)
    last = -1 if fields.get("moe_layer_end_index") in (None, -1) else fields.count("moe_layer_end_index", 0)
    end = num_layers - 1 if last == -1 else last
    return tuple([n for n in range(num_layers) if (n + 1) % interval or not start <= n <= end])


FAMILY = Family(
    name="ernie4_5_moe",
    read={"Ernie4_5_MoeForCausalLM": read_ernie4_5_moe},
    parameters=replace(
        CORRECTED, correction="mlp.moe_statics.e_score_correction_bias", correction_is_row=True, rows=INTERLEAVED
    ).table,
    ignored=(*MOE_TRAINING, "moe_capacity", "moe_gate", "moe_use_aux_free", "num_nextn_predict_layers"),
)
