"""Phi-1 to Phi-2: attention and a plain MLP side by side behind one LayerNorm, and part of each head rotated."""

from jaxgen.core.config import DType
from jaxgen.core.decoder_config import AttentionConfig, DecoderConfig, HeadConfig, MLPConfig, NormConfig, PositionConfig
from jaxgen.weights.config_fields import Fields
from jaxgen.weights.decoder_names import DecoderNames
from jaxgen.weights.family import Family, read_activation, read_sizes
from jaxgen.weights.rope_config import read_rope


def read_phi(fields: Fields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    sizes = read_sizes(fields, dtype, max_position=2048)
    norm = NormConfig(kind="layer", eps=fields.positive("layer_norm_eps", 1e-5))
    normed = fields.boolean("qk_layernorm", False)
    return DecoderConfig(
        **sizes,
        family="phi",
        norm=norm,
        placement="parallel",
        positions=PositionConfig(ropes=(read_rope(fields, sizes["max_position"], sizes["head_dim"], partial=0.5),)),
        attention=AttentionConfig(qkv_bias=True, out_bias=True, qk_norm=norm if normed else None),
        mlp=MLPConfig(
            gated=False, activation=read_activation(fields, "hidden_act", "gelu_new"), up_bias=True, down_bias=True
        ),
        head=HeadConfig(tied=fields.boolean("tie_word_embeddings", False), bias=True),
    )


FAMILY = Family(
    name="phi",
    read={"PhiForCausalLM": read_phi},
    parameters=DecoderNames(
        q_norm="self_attn.q_layernorm",
        k_norm="self_attn.k_layernorm",
        out="self_attn.dense",
        up="mlp.fc1",
        down="mlp.fc2",
        norm="model.final_layernorm",
    ).table,
)
