"""dots.llm1 (arXiv 2506.05767): norms of queries and keys, and experts next to shared ones in all but the first
layers."""

from jaxgen.weights.families.decoders.deepseek import (
    CORRECTED,
    first_dense,
    read_corrected,
    with_experts,
    with_shared,
)
from jaxgen.weights.families.family import (
    MOE_TRAINING,
    REQUIRED,
    DecoderConfig,
    DType,
    Family,
    JsonFields,
    read_decoder,
    read_layer_types,
    replace,
    windows_of,
)


def read_dots1(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    fields.choice("scoring_func", "noaux_tc", ("noaux_tc", "sigmoid"))
    fields = JsonFields({**fields.data, "scoring_func": "sigmoid"}, fields.source, fields.used)
    config = read_decoder(fields, dtype, max_position=2048, kv_heads=32, attention_bias=False)
    first = fields.count("max_window_layers", 62)
    types = read_layer_types(fields, config.num_layers, lambda layer: layer >= first)
    moe = read_corrected(
        fields,
        experts=REQUIRED,
        per_token=REQUIRED,
        inner=1408,
        renormalise=False,
        scale=1.0,
        groups=1,
        best_groups=1,
    )
    config = replace(
        config,
        attention=replace(config.attention, qk_norm=config.norm),
        windows=windows_of(types, fields.size_or_null("sliding_window", 4096)),
    )
    return with_experts(config, with_shared(fields, moe, 0), first_dense(fields, config.num_layers, 0))


FAMILY = Family(name="dots1", read={"Dots1ForCausalLM": read_dots1}, parameters=CORRECTED.table, ignored=MOE_TRAINING)
