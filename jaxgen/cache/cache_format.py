"""The format of a KV cache, from which memory and copies are counted in bytes. Host only, no jax."""

from dataclasses import dataclass, replace
from typing import Self

from jaxgen.core.cache_kind import CacheKind
from jaxgen.core.config import ITEMSIZE, CacheConfig, DType, ModelConfig
from jaxgen.core.host_dtype import BITS, GROUP_BYTES, HostDType, group_of
from jaxgen.core.kv_dtype import SCALE_BYTES, KVDType


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFormat:
    """The format of a KV cache: what it keeps of each token, and how many tokens make a block.

    A row is the keys, or the values, of one token and KV head in one layer. ``num_layers``: layers that have them.
    ``keep_inputs``: a block on the device also has the layer inputs of its tokens, numbers of the model's ``dtype``.
    """

    block_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    dtype: DType
    kv_dtype: KVDType = "auto"
    keep_inputs: bool = False

    @classmethod
    def of(cls, model: ModelConfig, block_size: int, *, keep_inputs: bool = False) -> Self:
        """Return the format of a model's cache."""
        return cls(
            block_size=block_size,
            num_layers=model.num_layers - len(model.state_layers),
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            hidden_size=model.hidden_size,
            dtype=model.dtype,
            kv_dtype=model.kv_dtype,
            keep_inputs=keep_inputs,
        )

    @classmethod
    def of_cache(cls, model: ModelConfig, cache: CacheConfig) -> Self:
        """Return the format of a model's cache whose size is known."""
        return cls.of(model, cache.block_size, keep_inputs=cache.keep_inputs)

    @property
    def of_layer(self) -> Self:
        """The format of one layer alone."""
        return replace(self, num_layers=1)

    def of_kind(self, kind: CacheKind) -> Self:
        """Return the format of the layers of one kind."""
        return replace(self, num_layers=len(kind.layers))

    @property
    def row_bytes(self) -> int:
        return self.head_dim * ITEMSIZE[self.dtype] if self.kv_dtype == "auto" else self.head_dim + SCALE_BYTES

    @property
    def kv_numbers(self) -> int:
        """Numbers of the keys and values of a token."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    @property
    def kv_bytes(self) -> int:
        """Bytes of the keys and values of a token."""
        return 2 * self.num_layers * self.num_kv_heads * self.row_bytes

    @property
    def input_bytes(self) -> int:
        """Bytes of the layer inputs of a token, whether they are kept or not."""
        return self.num_layers * self.hidden_size * ITEMSIZE[self.dtype]

    @property
    def inputs_are_smaller(self) -> bool:
        """Whether layer inputs have fewer bytes than keys and values, so that they can come back sooner."""
        return self.input_bytes < self.kv_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of a block on the device."""
        return self.block_size * (self.kv_bytes + self.kept_input_bytes)

    @property
    def kept_input_bytes(self) -> int:
        """Bytes of a token's layer inputs, 0 unless they are kept."""
        return self.input_bytes if self.keep_inputs else 0

    def host_block_bytes(self, host_dtype: HostDType) -> int:
        """Return the bytes of a block in host memory."""
        return self.host_kv_bytes(host_dtype) + self.block_size * self.kept_input_bytes

    def host_kv_bytes(self, host_dtype: HostDType) -> int:
        """Return the bytes of the keys and values of a block in host memory."""
        bits, numbers = BITS[host_dtype], self.block_size * self.kv_numbers
        if bits is None:
            return self.block_size * self.kv_bytes
        return numbers * bits // 8 + numbers // group_of(self.head_dim) * GROUP_BYTES


@dataclass(frozen=True, slots=True)
class KindBlocks:
    """The blocks of a kind of cache: how many, and the bytes of each."""

    kind: CacheKind
    num_blocks: int
    block_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.num_blocks * self.block_bytes


def kind_blocks(model: ModelConfig, cache: CacheConfig) -> tuple[KindBlocks, ...]:
    """Return the blocks of each kind of cache that a model is served with."""
    whole = CacheFormat.of_cache(model, cache)
    numbers = (cache.num_blocks, *cache.window_blocks)
    kinds = zip(cache.kinds(model), numbers, strict=True)
    return tuple(KindBlocks(kind, number, whole.of_kind(kind).block_bytes) for kind, number in kinds)


def blocks_bytes(model: ModelConfig, cache: CacheConfig) -> int:
    """Return the bytes of all blocks of a cache on the device."""
    return sum(blocks.num_bytes for blocks in kind_blocks(model, cache))
