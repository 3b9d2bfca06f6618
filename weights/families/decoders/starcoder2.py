"""StarCoder2 (arXiv 2402.19173): LayerNorms, a plain MLP, biases everywhere, and a window."""

from jaxgen.weights.families.family import (
    DecoderConfig,
    DecoderNames,
    DType,
    Family,
    JsonFields,
    one_window,
    read_decoder,
    replace,
)


def read_starcoder2(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    fields.must_be("norm_type", "layer_norm")
    fields.must_be("mlp_type", "default")
    fields.must_be("scale_attn_weights", True)
    bias = fields.boolean("use_bias", True)
    config = read_decoder(
        fields,
        dtype,
        max_position=4096,
        kv_heads=2,
        eps=1e-5,
        eps_name="norm_epsilon",
        layer_norm=True,
        activation="gelu_pytorch_tanh",
        gated=False,
        tied=True,
        windows=one_window(fields),
    )
    attention = replace(config.attention, qkv_bias=bias, out_bias=bias)
    return replace(config, attention=attention, mlp=replace(config.mlp, up_bias=bias, down_bias=bias))


FAMILY = Family(
    name="starcoder2",
    read={"Starcoder2ForCausalLM": read_starcoder2},
    parameters=DecoderNames(up="mlp.c_fc", down="mlp.c_proj").table,
    # transformers reads hidden_act and norm_epsilon, and has scores in float32 anyway
    ignored=(
        *("activation_function", "layer_norm_epsilon", "residual_dropout"),
        *("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"),
    ),
)
