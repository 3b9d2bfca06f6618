"""What every model says of itself: sizes, dtype, and what its layers keep of a sequence. Host only, no jax."""

from dataclasses import dataclass
from math import prod
from typing import Literal, Self

from jaxgen.core.cache_kind import CacheKind, RowShape, kinds_of, one_kind
from jaxgen.core.errors import ConfigError
from jaxgen.core.kv_dtype import KVDType
from jaxgen.core.mixed_weight import AnyFormat

DType = Literal["float32", "bfloat16", "float16"]
DTYPES: tuple[DType, ...] = ("float32", "bfloat16", "float16")
ITEMSIZE: dict[DType, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number, by dtype."""


@dataclass(frozen=True, slots=True)
class StateShape:
    """A state of each sequence that some layers have in place of K and V. Its size does not depend on the context.

    ``shape``, ``dtype``: of the numbers of one sequence in one of ``layers``.
    """

    name: str
    layers: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: DType

    @property
    def num_bytes(self) -> int:
        """Bytes of one sequence in all layers."""
        return len(self.layers) * prod(self.shape) * ITEMSIZE[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Fields of all models. ``max_position``: the longest context that the model was made for, in tokens."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    dtype: DType
    windows: tuple[int | None, ...] = ()
    """By layer: a token attends to itself and the ``window - 1`` tokens before it; None: to all before it. Empty: None
    in all layers."""
    weight_formats: tuple[tuple[str, AnyFormat], ...] = ()
    """Formats of the quantized parameters, by path; all others have ``dtype``, or a dtype of their own."""
    kv_dtype: KVDType = "auto"
    """What the KV cache has of keys and values."""
    fp8_inputs: bool = False
    """Whether products with weights in FP8 round their inputs to FP8 too, by token."""
    num_devices: int = 1
    """Devices that have such a model each, as a part of one that is divided (jaxgen.core.division)."""

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_attention_heads ({self.num_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_kv_heads})"
            )

    def weight_format(self, path: str) -> AnyFormat | None:
        """Return the format of a parameter; None: it is not quantized."""
        return dict(self.weight_formats).get(path)

    @property
    def output_size(self) -> int:
        """Elements of a token's final hidden state."""
        return self.hidden_size

    @property
    def generates(self) -> bool:
        """Whether the model continues texts; one that does not is for embeddings alone."""
        return True

    def within(self, max_model_len: int) -> Self:
        """Return the configuration for contexts of at most the given tokens, which treats all of them alike."""
        del max_model_len
        return self

    @property
    def active_share(self) -> float:
        """The share of the weights that a token is multiplied with: less than 1 where it chooses experts."""
        return 1.0

    @property
    def inner_values(self) -> int:
        """The values of a token that its MLP, or its experts, hold at once."""
        return 3 * self.intermediate_size

    @property
    def cache_rows(self) -> tuple[RowShape, ...]:
        """By layer: the shape of what it keeps of a token, if it has K and V."""
        return (RowShape(self.num_kv_heads, self.head_dim),) * self.num_layers

    @property
    def cache_kinds(self) -> tuple[CacheKind, ...]:
        """The kinds of cache that its layers can have; see ``CacheConfig.kinds``."""
        return kinds_of(self.windows, self.cache_rows, self.state_layers | self.readers.keys())

    @property
    def has_several_rows(self) -> bool:
        """Whether layers keep rows of several shapes, so that no array of a cache can have all of them."""
        return len({kind.row for kind in self.cache_kinds}) > 1

    @property
    def states(self) -> tuple[StateShape, ...]:
        """The states that layers have in place of K and V."""
        return ()

    @property
    def state_bytes(self) -> int:
        """The bytes of a sequence's states. They do not depend on its length."""
        return sum(state.num_bytes for state in self.states)

    @property
    def state_layers(self) -> frozenset[int]:
        """The layers that have a state in place of K and V."""
        return frozenset([layer for state in self.states for layer in state.layers])

    @property
    def readers(self) -> dict[int, int]:
        """The layers that read the K and V of another layer, and the number of that layer."""
        return {}

    def kinds_in(self, num_kinds: int) -> tuple[CacheKind, ...]:
        """Return the kinds of a cache with this many: ``cache_kinds``, or the one of all layers.

        Raises ValueError for one kind if the layers' rows have several shapes.
        """
        if num_kinds > 1:
            return self.cache_kinds
        if self.has_several_rows:
            raise ValueError("layers whose rows have several shapes need a kind of cache for each")
        return one_kind(self.cache_rows, self.state_layers | self.readers.keys())

    @property
    def layer_stacks(self) -> tuple[int, ...]:
        """By layer: which of the model's stacks of parameters it is in."""
        return (0,) * self.num_layers

    @property
    def widest_window(self) -> int | None:
        """The most tokens that any layer attends to; None: all."""
        return None if None in self.windows or not self.windows else max(window or 0 for window in self.windows)
