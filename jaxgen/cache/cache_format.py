"""The format of a KV cache, from which memory and copies are counted in bytes. Host only, no jax."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import gcd
from typing import Self

from jaxgen.core.cache_kind import CacheKind, RowShape
from jaxgen.core.config import CacheConfig
from jaxgen.core.host_dtype import BITS, GROUP_BYTES, HostDType, group_of
from jaxgen.core.kv_dtype import SCALE_BYTES, KVDType
from jaxgen.core.model_config import ITEMSIZE, DType, ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFormat:
    """The format of a KV cache: what it keeps of each token, and how many tokens make a block.

    ``rows``: of each layer that has keys and values, the shape of what it keeps of a token.
    ``keep_inputs``: a block on the device also has the layer inputs of its tokens, numbers of the model's ``dtype``.
    """

    block_size: int
    rows: tuple[RowShape, ...]
    hidden_size: int
    dtype: DType
    kv_dtype: KVDType = "auto"
    keep_inputs: bool = False

    @classmethod
    def of(cls, model: ModelConfig, block_size: int, *, keep_inputs: bool = False) -> Self:
        """Return the format of a model's cache."""
        return cls(
            block_size=block_size,
            rows=tuple([kind.row for kind in model.cache_kinds for _ in kind.layers]),
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
        """The format of one layer alone, where all keep rows of one shape."""
        return replace(self, rows=self.rows[:1])

    def of_kind(self, kind: CacheKind) -> Self:
        """Return the format of the layers of one kind."""
        return replace(self, rows=(kind.row,) * len(kind.layers))

    def _row_bytes(self, row: RowShape) -> int:
        """Return the bytes of a token in a layer."""
        if self.kv_dtype == "auto":
            return row.numbers * ITEMSIZE[self.dtype]
        return row.numbers + row.numbers // row.width * SCALE_BYTES

    @property
    def kv_numbers(self) -> int:
        """Numbers of the keys and values of a token."""
        return sum(row.numbers for row in self.rows)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the keys and values of a token."""
        return sum(map(self._row_bytes, self.rows))

    @property
    def input_bytes(self) -> int:
        """Bytes of the layer inputs of a token, whether they are kept or not."""
        return len(self.rows) * self.hidden_size * ITEMSIZE[self.dtype]

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
        bits = BITS[host_dtype]
        if bits is None:
            return self.block_size * self.kv_bytes
        groups = sum(row.numbers // group_of(row.width) for row in self.rows)
        return self.block_size * (self.kv_numbers * bits // 8 + groups * GROUP_BYTES)


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


def kind_formats(model: ModelConfig, cache: CacheConfig) -> tuple[CacheFormat, ...]:
    """Return the format of each kind of cache that a model is served with."""
    whole, kinds = CacheFormat.of_cache(model, cache), cache.kinds(model)
    return (whole,) if len(kinds) == 1 else tuple([whole.of_kind(kind) for kind in kinds])


def place_bytes(formats: Iterable[CacheFormat], host_dtype: HostDType) -> int:
    """Return the bytes of a place in host memory: a block of each of these kinds takes a whole number of places."""
    return gcd(*[each.host_block_bytes(host_dtype) for each in formats])


def blocks_bytes(model: ModelConfig, cache: CacheConfig) -> int:
    """Return the bytes of all blocks of a cache on the device."""
    return sum(blocks.num_bytes for blocks in kind_blocks(model, cache))
