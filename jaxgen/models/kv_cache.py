"""The functional blocked KV cache: a pytree that a step takes (donated) and returns."""

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from jaxgen.arrays import ArrayLike
from jaxgen.core.config import CacheConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.kernels.choice import CODE_DTYPES, REFERENCE, row_width
from jaxgen.kernels.kernels import Kernels


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVCache:
    """K and V of all blocks and layers, in the layout that pallas_kernels documents, and the kernels for it.

    ``arrays``: one for each kind of cache, with the layers of that kind and the blocks of its pool. ``inputs``: the
    layer inputs X, before the layer's norm, of all blocks and layers; None: they are not kept. A cache that keeps them
    has one kind. ``states``: one array for each of
    ``ModelConfig.states``, [S, its layers, *its shape], by row of the RowState. The row of a new sequence holds
    another's state, so layers read zeros for what lies before position 0.
    """

    arrays: tuple[Num[ArrayLike, "_ _ _ _ B _"], ...]
    kernels: Kernels = field(default=REFERENCE, metadata={"static": True})
    inputs: Float[ArrayLike, "N L B E"] | None = None
    states: tuple[Float[ArrayLike, "..."], ...] = ()

    @property
    def data(self) -> Num[ArrayLike, "N L P K B W"]:
        """The array of the first kind, which has all layers unless there are others."""
        return self.arrays[0]

    def with_array(self, array: Num[ArrayLike, "N L P K B W"], kind: int = 0) -> "KVCache":
        """Return the cache with another array of a kind."""
        return replace(self, arrays=(*self.arrays[:kind], array, *self.arrays[kind + 1 :]))

    @property
    def block_size(self) -> int:
        return self.data.shape[4]

    @property
    def num_slots(self) -> int:
        return self.data.shape[0] * self.data.shape[4]

    def write(
        self,
        kind: int,
        place: Int[Array, ""],
        k: Float[Array, "T K D"],
        v: Float[Array, "T K D"] | None,
        slots: Int[Array, "T"],
    ) -> "KVCache":
        """Return the cache with token t's K and V, in the layer at ``place`` of a kind's array, at ``slots[t]``; a slot
        past the last one is not written. ``v``: None where the array has one part."""
        return self.with_array(self.kernels.write_kv(self.arrays[kind], place, k, v, slots), kind)

    def keep(self, layer: Int[Array, ""], x: Float[Array, "T E"], slots: Int[Array, "T"]) -> "KVCache":
        """Return the cache with token t's input to ``layer`` at ``slots[t]``, as ``write`` does, if it keeps inputs."""
        if self.inputs is None:
            return self
        B = self.block_size
        return replace(self, inputs=self.inputs.at[slots // B, layer, slots % B].set(x, mode="drop"))

    def with_states(self, which: int, array: Float[Array, "..."]) -> "KVCache":
        """Return the cache with another array for state number ``which``."""
        return replace(self, states=(*self.states[:which], array, *self.states[which + 1 :]))

    def gather(self, ids: Int[Array, "m"], count: Int[Array, ""], kind: int = 0) -> tuple[Num[Array, "L P K B W"], ...]:
        """Return the blocks ``ids`` of a kind, each an array of its own; those after the first ``count`` are
        undefined."""
        staging = self.kernels.gather_blocks(self.arrays[kind], ids, count)
        return tuple(staging[i] for i in range(len(ids)))

    def scatter(
        self, ids: Int[Array, "m"], count: Int[Array, ""], *pieces: Num[Array, "L P K B W"], kind: int = 0
    ) -> "KVCache":
        """Return the cache with the first ``count`` of m pieces in its blocks ``ids[:count]`` of a kind."""
        return self.with_array(self.kernels.scatter_blocks(self.arrays[kind], ids, jnp.stack(pieces), count), kind)

    def copy(self, source: Int[Array, ""], target: Int[Array, ""]) -> "KVCache":
        """Return the cache with what block ``source`` holds in block ``target`` as well."""
        data, inputs = jax.tree.map(lambda blocks: blocks.at[target].set(blocks[source]), (self.data, self.inputs))
        return replace(self.with_array(data), inputs=inputs)

    def gather_inputs(self, ids: Int[Array, "m"]) -> tuple[Float[Array, "L B E"] | None, ...]:
        """Return the inputs of the blocks ``ids``, each an array of its own; None if they are not kept."""
        if self.inputs is None:
            return (None,) * len(ids)
        return tuple(self.inputs[ids])

    def scatter_inputs(self, ids: Int[Array, "m"], count: Int[Array, ""], pieces: Float[Array, "m L B E"]) -> "KVCache":
        """Return the cache with the first ``count`` of m pieces as the inputs of its blocks ``ids[:count]``."""
        assert self.inputs is not None
        wanted = jnp.where(jnp.arange(len(ids)) < count, ids, len(self.inputs))
        return replace(self, inputs=self.inputs.at[wanted].set(pieces, mode="drop"))


def cache_dtype(model: ModelConfig) -> jnp.dtype:
    """Return the dtype of a cache's array."""
    return jnp.dtype(CODE_DTYPES.get(model.kv_dtype, model.dtype))


def cache_shape(model: ModelConfig, cache: CacheConfig, kind: int = 0) -> tuple[int, int, int, int, int, int]:
    """Return the shape of the array of a kind of cache."""
    of_kind = cache.kinds(model)[kind]
    width = row_width(of_kind.row.width, cache_dtype(model))
    return (
        cache.blocks_of_kinds[kind],
        len(of_kind.layers),
        of_kind.row.parts,
        of_kind.row.heads,
        cache.block_size,
        width,
    )


def init_cache(model: ModelConfig, cache: CacheConfig, kernels: Kernels = REFERENCE, *, num_rows: int = 0) -> KVCache:
    """Return a cache of zeros; attention masks slots that are not written yet, whatever is there.

    ``num_rows``: rows that have states. With native kernels a block takes memory only once it is written.
    """
    dtype, of_inputs = jnp.dtype(model.dtype), (cache.num_blocks, model.num_layers, cache.block_size, model.hidden_size)
    inputs = kernels.zeros(of_inputs, dtype) if cache.keep_inputs else None
    shapes = [cache_shape(model, cache, kind) for kind in range(len(cache.blocks_of_kinds))]
    arrays = tuple([kernels.zeros(shape, cache_dtype(model)) for shape in shapes])
    return KVCache(arrays, kernels, inputs, init_states(model, num_rows, kernels))


def init_states(model: ModelConfig, num_rows: int, kernels: Kernels = REFERENCE) -> tuple[Array, ...]:
    """Return zeros for the states of as many rows, or snapshots of them: one array for each of the model's states."""
    return tuple([kernels.zeros((num_rows, len(one.layers), *one.shape), jnp.dtype(one.dtype)) for one in model.states])
