"""SmolLM3: Llama with layers that know no positions (NoPE, arXiv 2305.19466)."""

from jaxgen.core.config import DType
from jaxgen.core.decoder_config import AttentionConfig, DecoderConfig, HeadConfig, MLPConfig, NormConfig, PositionConfig
from jaxgen.weights.config_fields import Fields
from jaxgen.weights.decoder_names import DecoderNames
from jaxgen.weights.families.qwen2 import read_windows
from jaxgen.weights.family import Family, read_sizes
from jaxgen.weights.rope_config import read_rope


def read_smollm3(fields: Fields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    sizes = read_sizes(fields, dtype, max_position=32_768, kv_heads=4)
    fields.choice("hidden_act", "silu", ("silu",))
    num_layers, interval = sizes["num_layers"], fields.size("no_rope_layer_interval", 4)
    # 1 means that the layer has rotary positions
    listed = fields.by_layer("no_rope_layers", num_layers, "0 and 1", lambda value: value in (0, 1))
    turns = listed or tuple(int((layer + 1) % interval != 0) for layer in range(num_layers))
    rope = read_rope(fields, sizes["max_position"], sizes["head_dim"], theta=2_000_000.0)
    in_attention, in_mlp = fields.boolean("attention_bias", False), fields.boolean("mlp_bias", False)
    return DecoderConfig(
        **sizes,
        family="smollm3",
        windows=read_windows(fields, num_layers, lambda layer: not turns[layer]),
        norm=NormConfig(eps=fields.positive("rms_norm_eps", 1e-6)),
        positions=PositionConfig(ropes=(rope,), layer_ropes=tuple(0 if turned else None for turned in turns)),
        attention=AttentionConfig(qkv_bias=in_attention, out_bias=in_attention),
        mlp=MLPConfig(up_bias=in_mlp, down_bias=in_mlp),
        head=HeadConfig(tied=fields.boolean("tie_word_embeddings", True)),
    )


FAMILY = Family(
    name="smollm3",
    read={"SmolLM3ForCausalLM": read_smollm3},
    parameters=DecoderNames().table,
    ignored=("sliding_window", "max_window_layers", "layer_types", "no_rope_layer_interval"),
)
