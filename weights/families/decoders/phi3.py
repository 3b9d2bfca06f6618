"""Phi-3 and Phi-4 (arXiv 2404.14219, 2412.08905): Llama with merged matrices, a window, and longrope."""

from jaxgen.weights.families.family import (
    DecoderConfig,
    DecoderNames,
    DType,
    Family,
    JsonFields,
    one_window,
    read_decoder,
)


def read_phi3(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    return read_decoder(fields, dtype, max_position=4096, eps=1e-5, partial=1.0, windows=one_window(fields))


FAMILY = Family(
    name="phi3",
    read={"Phi3ForCausalLM": read_phi3},
    parameters=DecoderNames(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",)).table,
    ignored=("original_max_position_embeddings", "attention_bias", "mlp_bias", "full_attn_mod", "interpolate_factor"),
)
