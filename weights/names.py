"""Tables, one for each family, of the Hugging Face tensors that make up each parameter. Host only, no jax.

A parameter is its sources concatenated along rows and, when it is stacked, this for every layer. The conversion in both
directions, and every shape, follow from the table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxgen.core.config import LlamaConfig, ModelConfig, OPTConfig

Array = npt.NDArray[np.generic]
Place = Callable[[str, Array], Any]
"""A function that puts a parameter, given its dotted path and the host's array, where programs read it."""


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor of the checkpoint. In a stacked parameter ``name`` has ``{layer}`` in place of the layer's number."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the tree: ``sources`` concatenated along axis 0, stacked over ``num_layers`` unless it is None."""

    path: str
    sources: tuple[Source, ...]
    num_layers: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        rows = sum(source.shape[0] for source in self.sources)
        stack = () if self.num_layers is None else (self.num_layers,)
        return (*stack, rows, *self.sources[0].shape[1:])

    def source(self, source: Source, layer: int) -> Source:
        """Return the source with its name for that layer."""
        return Source(source.name.format(layer=layer), source.shape)

    def pieces(self) -> list[tuple[Source, tuple[int | slice, ...]]]:
        """Return every tensor of the parameter, with the index of its place in the parameter."""
        places: list[tuple[Source, tuple[int | slice, ...]]] = []
        for layer in range(self.num_layers or 1):
            start = 0
            for source in self.sources:
                rows = slice(start, start := start + source.shape[0])
                place = (rows,) if self.num_layers is None else (layer, rows)
                places.append((self.source(source, layer), place))
        return places


def parameters(config: ModelConfig) -> tuple[Parameter, ...]:
    """Return the table of the model's family: all parameters of the tree."""
    return FAMILIES[type(config)].parameters(config)


def family_name(config: ModelConfig) -> str:
    """Return the family's name in the manifest of a converted directory."""
    return FAMILIES[type(config)].name


def to_checkpoint(params: Mapping[str, Array], config: ModelConfig) -> dict[str, Array]:
    """Return the tree's arrays as the tensors of a Hugging Face checkpoint: views, by name."""
    return {
        source.name: params[parameter.path][place]
        for parameter in parameters(config)
        for source, place in parameter.pieces()
    }


def _linear(
    path: str, names: Mapping[str, int], width: int, *, bias: bool = False, num_layers: int | None = None
) -> list[Parameter]:
    """Return a matrix [sum of rows, width] of linear layers, by name and number of rows, and its bias."""
    weights = tuple(Source(f"{name}.weight", (rows, width)) for name, rows in names.items())
    biases = tuple(Source(f"{name}.bias", (rows,)) for name, rows in names.items())
    found = [Parameter(f"{path}.weight", weights, num_layers)]
    return found + ([Parameter(f"{path}.bias", biases, num_layers)] if bias else [])


def _norm(path: str, name: str, width: int, *, bias: bool = False, num_layers: int | None = None) -> list[Parameter]:
    kinds = ("weight", "bias") if bias else ("weight",)
    return [Parameter(f"{path}.{kind}", (Source(f"{name}.{kind}", (width,)),), num_layers) for kind in kinds]


def _attention(config: ModelConfig, prefix: str, out: str, bias: bool) -> list[Parameter]:
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    qkv = {f"{prefix}.q_proj": heads, f"{prefix}.k_proj": kv_heads, f"{prefix}.v_proj": kv_heads}
    width, layers = config.hidden_size, config.num_layers
    return [
        *_linear("layers.attn.qkv", qkv, width, bias=bias, num_layers=layers),
        *_linear("layers.attn.out", {f"{prefix}.{out}": width}, heads, bias=bias, num_layers=layers),
    ]


def _llama(config: ModelConfig) -> tuple[Parameter, ...]:
    assert isinstance(config, LlamaConfig)
    width, inner, layers = config.hidden_size, config.intermediate_size, config.num_layers
    layer, bias = "model.layers.{layer}", config.mlp_bias
    gate_up = {f"{layer}.mlp.gate_proj": inner, f"{layer}.mlp.up_proj": inner}
    head = [] if config.tie_embeddings else _linear("lm_head", {"lm_head": config.vocab_size}, width)
    return (
        *_linear("embed", {"model.embed_tokens": config.vocab_size}, width),
        *_norm("layers.attn_norm", f"{layer}.input_layernorm", width, num_layers=layers),
        *_attention(config, f"{layer}.self_attn", "o_proj", config.attention_bias),
        *_norm("layers.mlp_norm", f"{layer}.post_attention_layernorm", width, num_layers=layers),
        *_linear("layers.mlp.gate_up", gate_up, width, bias=bias, num_layers=layers),
        *_linear("layers.mlp.down", {f"{layer}.mlp.down_proj": width}, inner, bias=bias, num_layers=layers),
        *_norm("norm", "model.norm", width),
        *head,
    )


def _opt(config: ModelConfig) -> tuple[Parameter, ...]:
    assert isinstance(config, OPTConfig)
    width, inner, narrow, layers = config.hidden_size, config.intermediate_size, config.embed_size, config.num_layers
    decoder, layer, bias = "model.decoder", "model.decoder.layers.{layer}", config.bias
    found = [
        *_linear("embed", {f"{decoder}.embed_tokens": config.vocab_size}, narrow),
        # the table begins with two rows that no position uses
        *_linear("positions", {f"{decoder}.embed_positions": config.max_position + 2}, width),
        *_attention(config, f"{layer}.self_attn", "out_proj", bias),
        *_linear("layers.mlp.up", {f"{layer}.fc1": inner}, width, bias=bias, num_layers=layers),
        *_linear("layers.mlp.down", {f"{layer}.fc2": width}, inner, bias=bias, num_layers=layers),
    ]
    if narrow != width:
        found += _linear("project_in", {f"{decoder}.project_in": width}, narrow)
        found += _linear("project_out", {f"{decoder}.project_out": narrow}, width)
    if config.norm_affine:
        found += _norm("layers.attn_norm", f"{layer}.self_attn_layer_norm", width, bias=True, num_layers=layers)
        found += _norm("layers.mlp_norm", f"{layer}.final_layer_norm", width, bias=True, num_layers=layers)
        if config.pre_norm and config.final_norm:
            found += _norm("norm", f"{decoder}.final_layer_norm", width, bias=True)
    if not config.tie_embeddings:
        found += _linear("lm_head", {"lm_head": config.vocab_size}, narrow)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Family:
    """A family's name in manifests, and its table."""

    name: str
    parameters: Callable[[ModelConfig], tuple[Parameter, ...]]


FAMILIES: dict[type[ModelConfig], Family] = {LlamaConfig: Family("llama", _llama), OPTConfig: Family("opt", _opt)}
