"""A family of models: how its config.json is read, and what its tensors are called. Host only, no jax."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxgen.core.config import DType
from jaxgen.core.decoder_config import Activation, DecoderConfig
from jaxgen.weights.config_fields import REQUIRED, Fields
from jaxgen.weights.tensors import Parameter

MOE_TRAINING = ("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")
"""Fields of models with experts that only their training reads."""
BOTH_WAYS = "attention in both directions is not computed: take a model with causal attention"
SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, kw_only=True)
class Family:
    """``read``: by architecture (an entry of ``architectures``), the function that reads its config.json.

    ``parameters``: the table of a model's parameters. ``ignored``: fields of config.json that change nothing here,
    beside those of all families. ``unread``: tensors, as a regular expression of their names, that are not needed.
    """

    name: str
    read: dict[str, Callable[[Fields, DType], DecoderConfig]]
    parameters: Callable[[Any], tuple[Parameter, ...]]
    ignored: tuple[str, ...] = ()
    unread: str | None = None


def read_sizes(
    fields: Fields,
    dtype: DType,
    *,
    vocab_size: int = REQUIRED,
    num_heads: int = REQUIRED,
    max_position: int = REQUIRED,
    kv_heads: int | None = None,
    head_dim: int | None = None,
) -> dict[str, Any]:
    """Return the fields of ModelConfig under their usual names, but for windows.

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


def read_head_dim(fields: Fields, hidden_size: int, num_heads: int, default: int | None = None) -> int:
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
    "silu": "silu",
}
"""By their names in config.json."""


def read_activation(fields: Fields, name: str, default: str) -> Activation:
    """Return the activation of a plain MLP, of any kind that is computed."""
    return _ACTIVATIONS[fields.choice(name, default, tuple(_ACTIVATIONS))]


def read_layer_types(fields: Fields, num_layers: int, slides: Callable[[int], bool]) -> tuple[str, ...]:
    """Return which attention each layer has, SLIDING or FULL: as listed, or layer i slides if ``slides(i)``."""
    wanted = f"{FULL!r} and {SLIDING!r}"
    listed = fields.by_layer("layer_types", num_layers, wanted, lambda kind: kind in (SLIDING, FULL))
    return listed or tuple(SLIDING if slides(layer) else FULL for layer in range(num_layers))


def windows_of(layer_types: tuple[str, ...], window: int | None) -> tuple[int | None, ...]:
    """Return each layer's window; empty if none has one."""
    if window is None or SLIDING not in layer_types:
        return ()
    return tuple(window if kind == SLIDING else None for kind in layer_types)
