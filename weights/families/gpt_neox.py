"""GPT-NeoX and Pythia (arXiv 2204.06745, 2304.01373): two LayerNorms, attention and MLP side by side or in sequence."""

from jaxgen.core.config import DType
from jaxgen.core.decoder_config import AttentionConfig, DecoderConfig, HeadConfig, MLPConfig, NormConfig, PositionConfig
from jaxgen.weights.config_fields import Fields
from jaxgen.weights.decoder_names import DecoderNames
from jaxgen.weights.family import Family, read_activation, read_sizes
from jaxgen.weights.rope_config import read_rope
from jaxgen.weights.row_orders import by_head


def read_gpt_neox(fields: Fields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    sizes = read_sizes(fields, dtype, max_position=2048)
    rope = read_rope(
        fields,
        sizes["max_position"],
        sizes["head_dim"],
        partial=0.25,
        theta_name="rotary_emb_base",
        partial_name="rotary_pct",
    )
    bias = fields.boolean("attention_bias", True)
    return DecoderConfig(
        **sizes,
        family="gpt_neox",
        norm=NormConfig(kind="layer", eps=fields.positive("layer_norm_eps", 1e-5)),
        placement="parallel_two" if fields.boolean("use_parallel_residual", True) else "pre",
        positions=PositionConfig(ropes=(rope,)),
        attention=AttentionConfig(qkv_bias=bias, out_bias=bias),
        mlp=MLPConfig(
            gated=False, activation=read_activation(fields, "hidden_act", "gelu"), up_bias=True, down_bias=True
        ),
        head=HeadConfig(tied=fields.boolean("tie_word_embeddings", False)),
    )


FAMILY = Family(
    name="gpt_neox",
    read={"GPTNeoXForCausalLM": read_gpt_neox},
    parameters=DecoderNames(
        embed="gpt_neox.embed_in",
        layer="gpt_neox.layers.{layer}",
        qkv=("attention.query_key_value",),
        out="attention.dense",
        up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
        norm="gpt_neox.final_layer_norm",
        head="embed_out",
        rows={"attention.query_key_value": by_head},
    ).table,
    ignored=("rope_theta",),
    unread=r"(gpt_neox\.)?layers\.\d+\.attention\.(bias|masked_bias)",
)
