"""Command-R and Command-R+ (Cohere): attention and MLP in parallel after one LayerNorm without a bias.

Rotary pairs are neighbours, and logits are scaled. The larger model has a norm of queries and keys with a weight for
each head.
"""

from jaxgen.weights.families.family import (
    INTERLEAVED,
    DecoderConfig,
    DecoderNames,
    DType,
    Family,
    JsonFields,
    read_decoder,
    replace,
)


def read_cohere(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    # files of the hub have the context in model_max_length, and in the other field one that saves memory
    longest = fields.size_or_null("model_max_length")
    config = read_decoder(
        fields,
        dtype,
        max_position=8192,
        eps=1e-5,
        eps_name="layer_norm_eps",
        layer_norm=True,
        attention_bias=False,
        theta=500_000.0,
        tied=True,
        placement="parallel",
    )
    norm, normed = replace(config.norm, bias=False), fields.boolean("use_qk_norm", False)
    return replace(
        config,
        norm=norm,
        max_position=longest or config.max_position,
        attention=replace(config.attention, qk_norm=norm if normed else None, qk_norm_heads=normed),
        head=replace(config.head, scale=fields.positive("logit_scale", 0.0625)),
    )


FAMILY = Family(name="cohere", read={"CohereForCausalLM": read_cohere}, parameters=DecoderNames(rows=INTERLEAVED).table)
