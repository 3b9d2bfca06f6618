"""Llama 1 to 3 (arXiv 2302.13971, 2307.09288, 2407.21783), and Mistral (arXiv 2310.06825), which adds a window."""

from typing import Any

from jaxgen.weights.families.family import (
    DecoderConfig,
    DecoderNames,
    DType,
    Family,
    JsonFields,
    one_window,
    read_decoder,
)


def read_llama(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description of a Llama."""
    return read_decoder(fields, dtype, max_position=2048, attention_bias=False, mlp_bias=False)


def read_mistral(fields: JsonFields, dtype: DType, *, window: int | None = 4096, **defaults: Any) -> DecoderConfig:
    """Return the description of a Mistral, whose tensors are Llama's. ``defaults``: as for ``read_decoder``."""
    windows = one_window(fields, window)
    return read_decoder(fields, dtype, max_position=131_072, kv_heads=8, windows=windows, **defaults)


FAMILY = Family(
    name="llama",
    read={"LlamaForCausalLM": read_llama, "MistralForCausalLM": read_mistral},
    parameters=DecoderNames().table,
    # max_sequence_length repeats max_position_embeddings, and the others say which class wrote the file
    ignored=("pretraining_tp", "max_sequence_length", "is_llama_config"),
)
