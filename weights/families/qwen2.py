"""Qwen2 and Qwen2.5 (arXiv 2407.10671): Llama with biases of queries, keys and values."""

from collections.abc import Callable

from jaxgen.core.config import DType
from jaxgen.core.decoder_config import AttentionConfig, DecoderConfig, HeadConfig, NormConfig, PositionConfig
from jaxgen.weights.config_fields import Fields
from jaxgen.weights.decoder_names import DecoderNames
from jaxgen.weights.family import Family, read_layer_types, read_sizes, windows_of
from jaxgen.weights.rope_config import read_rope


def read_windows(
    fields: Fields, num_layers: int, slides: Callable[[int], bool] | None = None
) -> tuple[int | None, ...]:
    """Return each layer's window, if ``use_sliding_window``: of those that ``layer_types`` lists, or that slide.

    By default these are those from ``max_window_layers`` on.
    """
    # 0 is written where there is none
    size = fields.size_or_null("sliding_window", 4096) if fields.data.get("sliding_window") != 0 else None
    first = fields.count("max_window_layers", 28)
    types = read_layer_types(fields, num_layers, slides or (lambda layer: layer >= first))
    return windows_of(types, size) if fields.boolean("use_sliding_window", False) else ()


def read_qwen2(
    fields: Fields, dtype: DType, slides: Callable[[int], bool] | None = None, *, kv_heads: int = 32
) -> DecoderConfig:
    """Return the description. ``slides``: as for ``read_windows``; ``kv_heads``: the default."""
    sizes = read_sizes(fields, dtype, max_position=32_768, kv_heads=kv_heads)
    fields.choice("hidden_act", "silu", ("silu",))
    fields.must_be("use_mrope", False)
    return DecoderConfig(
        **sizes,
        family="qwen2",
        windows=read_windows(fields, sizes["num_layers"], slides),
        norm=NormConfig(eps=fields.positive("rms_norm_eps", 1e-6)),
        positions=PositionConfig(ropes=(read_rope(fields, sizes["max_position"], sizes["head_dim"]),)),
        attention=AttentionConfig(qkv_bias=True),
        head=HeadConfig(tied=fields.boolean("tie_word_embeddings", False)),
    )


FAMILY = Family(
    name="qwen2",
    read={"Qwen2ForCausalLM": read_qwen2},
    parameters=DecoderNames().table,
    ignored=("sliding_window", "max_window_layers", "layer_types"),
)
