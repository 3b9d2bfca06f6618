"""Blocks and snapshots of host memory as bytes, and back."""

import math
from collections.abc import Buffer, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from jaxgen.offload.tiers.host_store import HostBlock
from jaxgen.offload.tiers.kv_tier.value import DamagedError


class ArrayFormat:
    """The format of blocks whose arrays have these shapes: arrays one after the other, those of K and V first.

    In a snapshot the states are in place of K and V.
    """

    def __init__(self, kv: Any, inputs: Any, to_host: Sharding) -> None:
        """``kv``, ``inputs`` (None: blocks have none): shapes and dtypes. ``to_host``: puts arrays in host memory."""
        self._kv, self._inputs, self._to_host = kv, inputs, to_host

    @property
    def num_bytes(self) -> int:
        """See BlockFormat."""
        return _num_bytes(self._kv)

    @property
    def most_bytes(self) -> int:
        """See BlockFormat."""
        return _num_bytes((self._kv, self._inputs))

    def parts(self, block: HostBlock) -> Sequence[Buffer]:
        """See BlockFormat."""
        return [np.asarray(leaf).reshape(-1).view(np.uint8) for leaf in jax.tree.leaves((block.kv, block.inputs))]

    def block(self, content: memoryview) -> HostBlock:
        """See BlockFormat."""
        kv, inputs = self.num_bytes, _num_bytes(self._inputs)
        if len(content) == kv:
            return self._arrays(self._kv, None, content)
        if len(content) == kv + inputs:
            return self._arrays(self._kv, self._inputs, content)
        raise DamagedError(f"its content has {len(content)} bytes, a block {kv}")

    def _arrays(self, kv: Any, inputs: Any, content: memoryview) -> HostBlock:
        leaves, tree = jax.tree.flatten((kv, inputs))
        arrays = jax.device_put(list(_cut(leaves, content)), self._to_host)
        jax.block_until_ready(arrays)
        return HostBlock(*jax.tree.unflatten(tree, arrays))


def _num_bytes(shapes: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def _cut(leaves: Sequence[Any], content: memoryview) -> Iterator[np.ndarray]:
    start = 0
    for leaf in leaves:
        end = start + _num_bytes(leaf)
        yield np.frombuffer(content[start:end], leaf.dtype).reshape(leaf.shape)
        start = end
