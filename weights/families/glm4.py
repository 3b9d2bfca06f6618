"""GLM-4 (0414): norms around each sub-layer, half of each head rotated in neighbouring pairs, gate and up merged."""

from jaxgen.core.config import DType
from jaxgen.core.decoder_config import AttentionConfig, DecoderConfig, HeadConfig, NormConfig, PositionConfig
from jaxgen.weights.config_fields import Fields
from jaxgen.weights.decoder_names import DecoderNames
from jaxgen.weights.family import Family, read_sizes
from jaxgen.weights.rope_config import read_rope
from jaxgen.weights.row_orders import interleaved_keys, interleaved_queries


def read_glm4(fields: Fields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    sizes = read_sizes(fields, dtype, max_position=131_072, kv_heads=2, head_dim=128)
    fields.choice("hidden_act", "silu", ("silu",))
    return DecoderConfig(
        **sizes,
        family="glm4",
        norm=NormConfig(eps=fields.positive("rms_norm_eps", 1.5625e-07)),
        placement="sandwich",
        positions=PositionConfig(ropes=(read_rope(fields, sizes["max_position"], sizes["head_dim"], partial=0.5),)),
        attention=AttentionConfig(qkv_bias=fields.boolean("attention_bias", True)),
        head=HeadConfig(tied=fields.boolean("tie_word_embeddings", False)),
    )


FAMILY = Family(
    name="glm4",
    read={"Glm4ForCausalLM": read_glm4},
    parameters=DecoderNames(
        attn_post_norm="post_self_attn_layernorm",
        mlp_norm="post_attention_layernorm",
        mlp_post_norm="post_mlp_layernorm",
        gate_up=("mlp.gate_up_proj",),
        rows={"self_attn.q_proj": interleaved_queries, "self_attn.k_proj": interleaved_keys},
    ).table,
)
