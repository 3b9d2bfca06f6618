"""GLM-4.5 and 4.6: half of each head rotated, and experts next to a shared one in all but the first layers."""

from jaxgen.weights.families.decoders.deepseek import (
    CORRECTED,
    first_dense,
    read_corrected,
    with_experts,
    with_shared,
)
from jaxgen.weights.families.family import (
    MOE_TRAINING,
    DecoderConfig,
    DType,
    Family,
    JsonFields,
    read_decoder,
    replace,
)


def read_glm4_moe(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    config = read_decoder(fields, dtype, max_position=131_072, kv_heads=8, eps=1e-5, partial=0.5)
    attention = replace(
        config.attention,
        qkv_bias=fields.boolean("attention_bias", False),
        qk_norm=config.norm if fields.boolean("use_qk_norm", False) else None,
    )
    moe = read_corrected(
        fields, experts=128, per_token=8, inner=1408, renormalise=True, scale=1.0, groups=1, best_groups=1
    )
    dense = first_dense(fields, config.num_layers, 1)
    return with_experts(replace(config, attention=attention), with_shared(fields, moe, 1), dense)


FAMILY = Family(
    name="glm4_moe",
    read={"Glm4MoeForCausalLM": read_glm4_moe},
    parameters=CORRECTED.table,
    ignored=(*MOE_TRAINING, "num_nextn_predict_layers"),
)
