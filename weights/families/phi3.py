"""Phi-3 and Phi-4 (arXiv 2404.14219, 2412.08905): Llama with merged matrices, a window, and longrope."""

from jaxgen.core.config import DType
from jaxgen.core.decoder_config import DecoderConfig, HeadConfig, NormConfig, PositionConfig
from jaxgen.weights.config_fields import Fields
from jaxgen.weights.decoder_names import DecoderNames
from jaxgen.weights.family import Family, read_sizes
from jaxgen.weights.rope_config import read_rope


def read_phi3(fields: Fields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    sizes = read_sizes(fields, dtype, max_position=4096)
    fields.choice("hidden_act", "silu", ("silu",))
    window = fields.size_or_null("sliding_window")
    rope = read_rope(fields, sizes["max_position"], sizes["head_dim"], partial=1.0)
    return DecoderConfig(
        **sizes,
        family="phi3",
        windows=() if window is None else (window,) * sizes["num_layers"],
        norm=NormConfig(eps=fields.positive("rms_norm_eps", 1e-5)),
        positions=PositionConfig(ropes=(rope,)),
        head=HeadConfig(tied=fields.boolean("tie_word_embeddings", False)),
    )


FAMILY = Family(
    name="phi3",
    read={"Phi3ForCausalLM": read_phi3},
    parameters=DecoderNames(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",)).table,
    ignored=("original_max_position_embeddings", "attention_bias", "mlp_bias", "full_attn_mod", "interpolate_factor"),
)
