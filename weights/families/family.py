"""A family of models: how its config.json is read, and what its tensors are called. Host only, no jax.

All that a module of ``families`` needs can be imported from here.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.decoder_parts import (
    Activation,
    AttentionConfig,
    HeadConfig,
    MLPConfig,
    NormConfig,
    PositionConfig,
    QueryScale,
    RopeConfig,
)
from jaxgen.core.model_config import DType
from jaxgen.core.moe_config import MoEConfig
from jaxgen.weights.families.config_fields import REQUIRED, JsonFields
from jaxgen.weights.families.decoder_names import DecoderNames
from jaxgen.weights.families.rope_config import demand_rope, read_rope, rope_fields
from jaxgen.weights.families.row_orders import INTERLEAVED, by_head, by_kv_head
from jaxgen.weights.families.tensors import Parameter, Source

__all__ = [
    "BOTH_WAYS",
    "FULL",
    "INTERLEAVED",
    "LINEAR",
    "MOE_TRAINING",
    "REQUIRED",
    "SLIDING",
    "Activation",
    "AttentionConfig",
    "DType",
    "DecoderConfig",
    "DecoderNames",
    "Family",
    "HeadConfig",
    "JsonFields",
    "MLPConfig",
    "MoEConfig",
    "NormConfig",
    "Parameter",
    "PositionConfig",
    "QueryScale",
    "RopeConfig",
    "Source",
    "by_head",
    "by_kv_head",
    "demand_rope",
    "one_window",
    "read_activation",
    "read_decoder",
    "read_head_dim",
    "read_layer_types",
    "read_rope",
    "read_sizes",
    "replace",
    "rope_fields",
    "windows_of",
]

MOE_TRAINING = ("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")
"""Fields of models with experts that only their training reads."""
BOTH_WAYS = "attention in both directions is not computed: take a model with causal attention"
SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"
_WIDEST = 2**30
"""A window of more tokens is none: no context is as long, and programs count positions in 32 bits."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family, which the registry finds.

    ``read``: by architecture (an entry of ``architectures``), the function that reads its config.json.

    ``parameters``: the table of a model's parameters. ``ignored``: fields of config.json that change nothing here, in
    addition to those of all families.
    """

    name: str
    read: dict[str, Callable[[JsonFields, DType], DecoderConfig]]
    parameters: Callable[[Any], tuple[Parameter, ...]]
    ignored: tuple[str, ...] = ()


def read_decoder(
    fields: JsonFields,
    dtype: DType,
    *,
    max_position: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    eps: float = 1e-6,
    eps_name: str = "rms_norm_eps",
    layer_norm: bool = False,
    scale_in_float32: bool = False,
    activation: str = "silu",
    gated: bool = True,
    attention_bias: bool | None = None,
    mlp_bias: bool | None = None,
    theta: float = 10_000.0,
    partial: float | None = None,
    tied: bool = False,
    **parts: Any,
) -> DecoderConfig:
    """Return the description that the fields shared by nearly all families give. Raises ConfigError.

    Values are the family's defaults. ``kv_heads``, ``head_dim``: as for ``read_sizes``; ``theta``, ``partial``: as for
    ``read_rope``. ``eps``: of the field ``eps_name``. ``layer_norm``: the norms are LayerNorms with a bias, not RMS
    norms; ``scale_in_float32``: as for NormConfig. ``gated``: then no other activation is computed. ``attention_bias``,
    ``mlp_bias``: of the fields of these names; None: there is neither field nor bias. ``parts``: fields of
    DecoderConfig, in place of what is read so.
    """
    sizes = read_sizes(fields, dtype, max_position=max_position, kv_heads=kv_heads, head_dim=head_dim)
    of_mlp = "silu" if gated else read_activation(fields, "hidden_act", activation)
    if gated:
        fields.choice("hidden_act", activation, (activation,))
    in_attention = attention_bias is not None and fields.boolean("attention_bias", attention_bias)
    in_mlp = mlp_bias is not None and fields.boolean("mlp_bias", mlp_bias)
    read: dict[str, Any] = {
        "norm": NormConfig(
            kind="layer" if layer_norm else "rms", eps=fields.positive(eps_name, eps), scale_in_float32=scale_in_float32
        ),
        "attention": AttentionConfig(qkv_bias=in_attention, out_bias=in_attention),
        "mlp": MLPConfig(gated=gated, activation=of_mlp, up_bias=in_mlp, down_bias=in_mlp),
        "head": HeadConfig(tied=fields.boolean("tie_word_embeddings", tied)),
    }
    if "positions" not in parts:
        rope = read_rope(fields, sizes["max_position"], sizes["head_dim"], theta=theta, partial=partial)
        read["positions"] = PositionConfig(ropes=(rope,))
    return DecoderConfig(**sizes, **(read | parts))


def read_sizes(
    fields: JsonFields,
    dtype: DType,
    *,
    vocab_size: int = REQUIRED,
    num_heads: int = REQUIRED,
    max_position: int = REQUIRED,
    kv_heads: int | None = None,
    head_dim: int | None = None,
) -> dict[str, Any]:
    """Return the fields of ModelConfig under their usual names, except windows.

    ``vocab_size`` and so on: the family's defaults, where files of it omit them. ``kv_heads`` None: as many as heads;
    ``head_dim`` None: the hidden size by their number.
    """
    hidden_size, num_heads = fields.size("hidden_size"), fields.size("num_attention_heads", num_heads)
    return {
        "vocab_size": fields.size("vocab_size", vocab_size),
        "hidden_size": hidden_size,
        "intermediate_size": fields.size("intermediate_size"),
        "num_layers": fields.size("num_hidden_layers"),
        "num_heads": num_heads,
        "num_kv_heads": fields.size_or_null("num_key_value_heads", kv_heads) or num_heads,
        "head_dim": read_head_dim(fields, hidden_size, num_heads, head_dim),
        "max_position": fields.size("max_position_embeddings", max_position),
        "dtype": dtype,
    }


def read_head_dim(fields: JsonFields, hidden_size: int, num_heads: int, default: int | None = None) -> int:
    """Return ``head_dim``, or the default, or what hidden size and heads mean."""
    if (given := fields.size_or_null("head_dim", default)) is not None:
        return given
    if hidden_size % num_heads:
        raise fields.error("hidden_size", f"({hidden_size}) must be a multiple of num_attention_heads ({num_heads})")
    return hidden_size // num_heads


_ACTIVATIONS: dict[str, Activation] = {
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
}
"""By their names in config.json."""


def read_activation(fields: JsonFields, name: str, default: str) -> Activation:
    """Return the activation of a plain MLP, of any kind that is computed."""
    return _ACTIVATIONS[fields.choice(name, default, tuple(_ACTIVATIONS))]


def read_layer_types(fields: JsonFields, num_layers: int, slides: Callable[[int], bool]) -> tuple[str, ...]:
    """Return which attention each layer has, SLIDING or FULL: as listed, or layer i slides if ``slides(i)``."""
    wanted = f"{FULL!r} and {SLIDING!r}"
    listed = fields.by_layer("layer_types", num_layers, wanted, lambda kind: kind in (SLIDING, FULL))
    return listed or tuple(SLIDING if slides(layer) else FULL for layer in range(num_layers))


def one_window(fields: JsonFields, default: int | None = None) -> tuple[int | None, ...]:
    """Return ``sliding_window`` for each layer; empty if it is null."""
    return windows_of((SLIDING,) * fields.size("num_hidden_layers"), fields.size_or_null("sliding_window", default))


def windows_of(layer_types: tuple[str, ...], window: int | None) -> tuple[int | None, ...]:
    """Return each layer's window; empty if none has one."""
    if window is None or window > _WIDEST or SLIDING not in layer_types:
        return ()
    return tuple(window if kind == SLIDING else None for kind in layer_types)
