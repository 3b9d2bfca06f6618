"""Kinds of layers: what mixes the tokens of a sequence, and which stack has a layer's parameters. Host only, no jax."""

import re
from dataclasses import dataclass
from typing import Literal, get_args

from jaxgen.core.errors import ConfigError

LayerKind = Literal["attention", "global", "reader", "global_reader", "latent", "conv", "delta"]
"""global: attention whose heads have a shape of their own. reader, global_reader: attention to the keys and values of
the last layer before them of kind attention, or global. latent: attention over latents."""
LAYER_KINDS: tuple[LayerKind, ...] = get_args(LayerKind)
READ_BY: dict[LayerKind, LayerKind] = {"reader": "attention", "global_reader": "global"}
"""The kind of the layers whose keys and values a kind reads."""
ATTENTION_KINDS: tuple[LayerKind, ...] = ("attention", "global", *READ_BY, "latent")

CONV_STATE = "conv"
"""The name of the state of layers with a convolution."""
DELTA_INPUTS = "delta_inputs"
"""The name of the state of a gated delta net's convolution."""
DELTA_STATES = ("delta_starts", "delta_keys", "delta_changes", "delta_decays")
"""Names of the further states of gated delta nets, in the order of pallas_kernels.gated_delta.DeltaState."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """KV heads of the attention of a kind of layers, and the numbers of each head, also of a query's.

    ``keys_are_values``: values are the keys as they are projected, before their norm and rotation. ``reads``: keys and
    values are those of another layer.
    """

    kv_heads: int
    head_dim: int
    keys_are_values: bool = False
    reads: bool = False

    @property
    def projections(self) -> int:
        """Projections to KV heads: of keys and of values, of keys alone, or none."""
        return 0 if self.reads else 1 if self.keys_are_values else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerEmbedding:
    """Embeddings of tokens for each layer, ``width`` numbers in each, of a vocabulary of ``vocab_size`` (Gemma 4)."""

    vocab_size: int
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionConfig:
    """A gated short convolution over each sequence, see pallas_kernels.short_convolution.

    ``taps``: tokens that a token depends on, with itself. ``bias``: of the filter and of both projections.
    """

    taps: int
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaConfig:
    """A gated delta net, see pallas_kernels.gated_delta: ``key_heads`` of ``key_dim`` numbers for queries and for keys,
    ``heads`` of ``value_dim`` numbers for values, which are filtered by ``taps`` before.

    ``span``: positions between two of the matrices that are stored. More of them need more memory for what the open
    span keeps, fewer store a matrix more often. Raises ConfigError if heads do not fit each other.
    """

    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    taps: int
    span: int = 32

    def __post_init__(self) -> None:
        if self.heads % self.key_heads:
            raise ConfigError(
                f"linear_num_value_heads ({self.heads}) must be a multiple of linear_num_key_heads ({self.key_heads})"
            )

    @property
    def channels(self) -> int:
        """Numbers of a token's queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.values

    @property
    def values(self) -> int:
        """Numbers of a token's values."""
        return self.heads * self.value_dim

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of ``DELTA_STATES``."""
        return (
            (self.heads, self.key_dim, self.value_dim),
            (self.key_heads, self.key_dim, self.span),
            (self.heads, self.span, self.value_dim),
            (self.heads, self.span),
        )


@dataclass(frozen=True, slots=True)
class Stack:
    """Layers whose parameters are stacked. ``dense``: they have an MLP, in a model whose other layers have experts."""

    kind: LayerKind = "attention"
    dense: bool = False

    @property
    def name(self) -> str:
        """What paths of parameters call it."""
        return f"{self.kind}_dense" if self.dense else self.kind


ONE_STACK = Stack()
"""That of models whose layers are all alike."""
_STACK = re.compile(rf"^layers\.({'|'.join(LAYER_KINDS)})(_dense)?\.(?=attn|conv|delta|mlp|scale|embedding)")


def path_in_stack(path: str, stack: Stack) -> str:
    """Return the path of a layer's parameter in a model with several stacks."""
    return path.replace("layers.", f"layers.{stack.name}.", 1)


def path_without_stack(path: str) -> str:
    """Return the path that ``path_in_stack`` was given, or any other path as it is."""
    return _STACK.sub("layers.", path)
