"""Qwen3 (arXiv 2505.09388): Llama with a norm of each head's queries and keys."""

from collections.abc import Callable

from jaxgen.core.config import DType
from jaxgen.core.decoder_config import AttentionConfig, DecoderConfig, HeadConfig, NormConfig, PositionConfig
from jaxgen.weights.config_fields import Fields
from jaxgen.weights.decoder_names import DecoderNames
from jaxgen.weights.families.qwen2 import read_windows
from jaxgen.weights.family import Family, read_sizes
from jaxgen.weights.rope_config import read_rope


def read_qwen3(
    fields: Fields,
    dtype: DType,
    slides: Callable[[int], bool] | None = None,
    *,
    kv_heads: int = 32,
    head_dim: int | None = 128,
) -> DecoderConfig:
    """Return the description. ``slides``: as for ``read_windows``; others: as for ``read_sizes``."""
    sizes = read_sizes(fields, dtype, max_position=32_768, kv_heads=kv_heads, head_dim=head_dim)
    fields.choice("hidden_act", "silu", ("silu",))
    fields.must_be("use_qk_norm", True)
    bias, norm = fields.boolean("attention_bias", False), NormConfig(eps=fields.positive("rms_norm_eps", 1e-6))
    return DecoderConfig(
        **sizes,
        family="qwen3",
        windows=read_windows(fields, sizes["num_layers"], slides),
        norm=norm,
        positions=PositionConfig(ropes=(read_rope(fields, sizes["max_position"], sizes["head_dim"]),)),
        attention=AttentionConfig(qkv_bias=bias, out_bias=bias, qk_norm=norm),
        head=HeadConfig(tied=fields.boolean("tie_word_embeddings", False)),
    )


FAMILY = Family(
    name="qwen3",
    read={"Qwen3ForCausalLM": read_qwen3},
    parameters=DecoderNames().table,
    ignored=("sliding_window", "max_window_layers", "layer_types"),
)
