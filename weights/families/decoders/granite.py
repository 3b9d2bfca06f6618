"""Granite 3 (IBM): Llama with four constants that multiply embeddings, scores, what each sub-layer adds, and logits."""

from jaxgen.weights.families.decoders.llama import read_llama
from jaxgen.weights.families.family import DecoderConfig, DecoderNames, DType, Family, JsonFields, replace


def read_granite(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    config = read_llama(fields, dtype)
    return replace(
        config,
        embed_scale=fields.positive("embedding_multiplier", 1.0),
        residual_scale=fields.positive("residual_multiplier", 1.0),
        attention=replace(config.attention, scale=fields.positive("attention_multiplier", 1.0)),
        head=replace(config.head, scale=1.0 / fields.positive("logits_scaling", 1.0)),
    )


FAMILY = Family(name="granite", read={"GraniteForCausalLM": read_granite}, parameters=DecoderNames().table)
