"""The programs that copy blocks, and snapshots of states, between the cache of the device and staging memory."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int

from jaxgen.core.host_dtype import HostDType
from jaxgen.models.kv_cache import KVCache
from jaxgen.offload.transfer.codec import Piece, decode, encode
from jaxgen.runner.program import Program, int32, shapes_of
from jaxgen.runner.state_snapshots import OneState, States, state_at, with_state


@dataclass(frozen=True)
class BlockCopies:
    """The programs that gather ``group`` blocks of a kind of cache, and scatter them into it (donated).

    ``group_bytes``: of these blocks on the device.
    """

    group: int
    group_bytes: int
    gather: Callable[..., Any]
    scatter: Callable[..., KVCache]

    def ids(self, blocks: Iterable[int]) -> np.ndarray:
        """Return the ids of at most ``group`` blocks for the programs."""
        ids, numbers = np.zeros(self.group, np.int32), list(blocks)
        ids[: len(numbers)] = numbers
        return ids


@dataclass(frozen=True)
class StateCopies:
    """The programs that copy a snapshot out of the device's, and into them (donated)."""

    gather: Callable[..., OneState]
    scatter: Callable[..., States]


def compile_states(snapshots: States) -> StateCopies:
    """Compile the copies of snapshots like these."""
    shapes, number = shapes_of(snapshots), int32()
    one = jax.eval_shape(state_at, shapes, number)
    return StateCopies(
        Program(state_at, (shapes, number)).compile(),
        Program(with_state, (shapes, number, one), donated=(0,)).compile(),
    )


def host_piece(cache: KVCache, host_dtype: HostDType, kind: int) -> Any:
    """Return the shapes of a block of a kind of cache in the host's format."""
    return jax.eval_shape(partial(encode, host_dtype=host_dtype), _block(cache, kind))


def compile_blocks(cache: KVCache, group: int, host_dtype: HostDType, kind: int) -> BlockCopies:
    """Compile the programs that copy blocks of a kind to the host's format, and back."""
    shapes, ids, count = shapes_of(cache), int32(group), int32()
    block, piece = _block(cache, kind), host_piece(cache, host_dtype, kind)

    def gather(cache: KVCache, ids: Int[Array, "m"], count: Int[Array, ""]) -> tuple[tuple[Piece, Array | None], ...]:
        kv = (encode(block, host_dtype) for block in cache.gather(ids, count, kind))
        return tuple(zip(kv, cache.gather_inputs(ids), strict=True))

    def scatter(cache: KVCache, ids: Int[Array, "m"], count: Int[Array, ""], *pieces: Piece) -> KVCache:
        return cache.scatter(ids, count, *[decode(piece, block) for piece in pieces], kind=kind)

    gathering = Program(gather, (shapes, ids, count)).compile()
    scattering = Program(scatter, (shapes, ids, count, *[piece] * group), donated=(0,)).compile()
    return BlockCopies(group, group * block.size * block.dtype.itemsize, gathering, scattering)


def _block(cache: KVCache, kind: int) -> jax.ShapeDtypeStruct:
    array = cache.arrays[kind]
    return jax.ShapeDtypeStruct(array.shape[1:], array.dtype)
