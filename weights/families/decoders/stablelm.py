"""StableLM 2 (Stability AI, arXiv 2402.17834) and StableLM 3B: Llama with LayerNorms and part of each head rotated.

The 12B has attention and MLP in parallel, and a norm of queries and keys with a weight for each head.
"""

from jaxgen.weights.families.family import DecoderConfig, DecoderNames, DType, Family, JsonFields, read_decoder, replace


def read_stablelm(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    config = read_decoder(
        fields,
        dtype,
        max_position=4096,
        kv_heads=32,
        eps=1e-5,
        eps_name="layer_norm_eps",
        layer_norm=True,
        partial=0.25,
    )
    normed = fields.boolean("qk_layernorm", False)
    return replace(
        config,
        placement="parallel" if fields.boolean("use_parallel_residual", False) else "pre",
        attention=replace(
            config.attention,
            qkv_bias=fields.boolean("use_qkv_bias", False),
            qk_norm=replace(config.norm, bias=False) if normed else None,
            qk_norm_heads=normed,
        ),
    )


FAMILY = Family(
    name="stablelm",
    read={"StableLmForCausalLM": read_stablelm},
    parameters=DecoderNames(
        q_norm="self_attn.q_layernorm.norms.{head}", k_norm="self_attn.k_layernorm.norms.{head}"
    ).table,
)
