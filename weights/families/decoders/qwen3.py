"""Qwen3 (arXiv 2505.09388): Llama with a norm of each head's queries and keys."""

from collections.abc import Callable
from typing import Any

from jaxgen.weights.families.decoders.qwen2 import read_windows
from jaxgen.weights.families.family import DecoderConfig, DecoderNames, DType, Family, JsonFields, read_decoder, replace


def read_qwen3(
    fields: JsonFields, dtype: DType, slides: Callable[[int], bool] | None = None, **defaults: Any
) -> DecoderConfig:
    """Return the description. ``slides``: as for ``read_windows``; others: as for ``read_decoder``."""
    fields.must_be("use_qk_norm", True)
    sizes = {"kv_heads": 32, "head_dim": 128} | defaults
    config = read_decoder(fields, dtype, max_position=32_768, attention_bias=False, **sizes)
    attention = replace(config.attention, qk_norm=config.norm)
    return replace(config, windows=read_windows(fields, slides), attention=attention)


FAMILY = Family(
    name="qwen3",
    read={"Qwen3ForCausalLM": read_qwen3},
    parameters=DecoderNames().table,
    ignored=("sliding_window", "max_window_layers", "layer_types"),
)
