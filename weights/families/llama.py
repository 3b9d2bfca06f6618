"""Llama 1 to 3 (arXiv 2302.13971, 2307.09288, 2407.21783), and Mistral (arXiv 2310.06825), which adds a window."""

from jaxgen.core.config import DType
from jaxgen.core.decoder_config import DecoderConfig, llama_config
from jaxgen.weights.config_fields import Fields
from jaxgen.weights.decoder_names import DecoderNames
from jaxgen.weights.family import Family, read_sizes
from jaxgen.weights.rope_config import read_rope


def read_llama(
    fields: Fields,
    dtype: DType,
    *,
    biases: bool = True,
    window: bool = False,
    kv_heads: int | None = None,
    default_window: int | None = 4096,
    rms_norm_eps: float = 1e-6,
    theta: float = 10_000.0,
) -> DecoderConfig:
    """Return the description. ``biases``, ``window``: whether the file may ask for them; others: its defaults."""
    sizes = read_sizes(fields, dtype, max_position=131_072 if window else 2048, kv_heads=kv_heads)
    if sizes["head_dim"] % 2:
        raise fields.error("head_dim", f"must be even for rotary positions, not {sizes['head_dim']}")
    fields.choice("hidden_act", "silu", ("silu",))
    return llama_config(
        **sizes,
        norm_eps=fields.positive("rms_norm_eps", rms_norm_eps),
        rope=read_rope(fields, sizes["max_position"], sizes["head_dim"], theta=theta),
        window=fields.size_or_null("sliding_window", default_window) if window else None,
        attention_bias=biases and fields.boolean("attention_bias", False),
        mlp_bias=biases and fields.boolean("mlp_bias", False),
        tie_embeddings=fields.boolean("tie_word_embeddings", False),
    )


def read_mistral(fields: Fields, dtype: DType) -> DecoderConfig:
    """Return the description of a Mistral, whose tensors are Llama's."""
    return read_llama(fields, dtype, biases=False, window=True, kv_heads=8)


FAMILY = Family(
    name="llama",
    read={"LlamaForCausalLM": read_llama, "MistralForCausalLM": read_mistral},
    parameters=DecoderNames().table,
    # max_sequence_length repeats max_position_embeddings, and the others say which class wrote the file
    ignored=("pretraining_tp", "max_sequence_length", "is_llama_config"),
)
