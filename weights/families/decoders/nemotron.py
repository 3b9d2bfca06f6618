"""Nemotron-4 and Minitron (arXiv 2402.16819, 2407.14679): LayerNorms of weights 1 + w, a plain MLP of squared ReLU, and
half of each head rotated."""

from jaxgen.weights.families.family import DecoderConfig, DecoderNames, DType, Family, JsonFields, read_decoder


def read_nemotron(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    config = read_decoder(
        fields,
        dtype,
        max_position=4096,
        eps=1e-5,
        eps_name="norm_eps",
        layer_norm=True,
        scale_in_float32=True,
        activation="relu2",
        gated=False,
        attention_bias=False,
        mlp_bias=False,
        partial=0.5,
    )
    fields.must_be("kv_channels", config.head_dim, "it must repeat head_dim")
    return config


FAMILY = Family(
    name="nemotron", read={"NemotronForCausalLM": read_nemotron}, parameters=DecoderNames(norm_plus=1.0).table
)
