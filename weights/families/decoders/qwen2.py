"""Qwen2 and Qwen2.5 (arXiv 2407.10671): Llama with biases of queries, keys and values."""

from collections.abc import Callable

from jaxgen.weights.families.family import (
    AttentionConfig,
    DecoderConfig,
    DecoderNames,
    DType,
    Family,
    JsonFields,
    read_decoder,
    read_layer_types,
    windows_of,
)


def read_windows(fields: JsonFields, slides: Callable[[int], bool] | None = None) -> tuple[int | None, ...]:
    """Return each layer's window, or () without ``use_sliding_window``.

    ``layer_types`` lists the layers with a window. Without it, ``slides`` says whether a layer has one; by
    default the layers from ``max_window_layers`` on have one.
    """
    # 0 is written where there is none
    size = fields.size_or_null("sliding_window", 4096) if fields.data.get("sliding_window") != 0 else None
    first = fields.count("max_window_layers", 28)
    types = read_layer_types(fields, fields.size("num_hidden_layers"), slides or (lambda layer: layer >= first))
    return windows_of(types, size) if fields.boolean("use_sliding_window", False) else ()


def read_qwen2(
    fields: JsonFields, dtype: DType, slides: Callable[[int], bool] | None = None, *, kv_heads: int = 32
) -> DecoderConfig:
    """Return the description. ``slides``: as for ``read_windows``; ``kv_heads``: the default."""
    fields.must_be("use_mrope", False)
    attention, windows = AttentionConfig(qkv_bias=True), read_windows(fields, slides)
    return read_decoder(fields, dtype, max_position=32_768, kv_heads=kv_heads, attention=attention, windows=windows)


FAMILY = Family(
    name="qwen2",
    read={"Qwen2ForCausalLM": read_qwen2},
    parameters=DecoderNames().table,
    ignored=("sliding_window", "max_window_layers", "layer_types"),
)
