"""The functional blocked KV cache: a pytree that a step takes (donated) and returns."""

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from jaxgen.arrays import ArrayLike
from jaxgen.core.config import CacheConfig, ModelConfig
from jaxgen.kernels.choice import CODE_DTYPES, REFERENCE, row_width
from jaxgen.kernels.kernels import Kernels


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVCache:
    """K and V of all blocks and layers, in the layout that pallas_kernels documents, and the kernels for it.

    ``inputs``: the layer inputs X, before the layer's norm, of all blocks and layers; None: they are not kept.
    """

    data: Num[ArrayLike, "N L 2 K B W"]
    kernels: Kernels = field(default=REFERENCE, metadata={"static": True})
    inputs: Float[ArrayLike, "N L B E"] | None = None

    @property
    def block_size(self) -> int:
        return self.data.shape[4]

    @property
    def num_slots(self) -> int:
        return self.data.shape[0] * self.data.shape[4]

    def write(
        self, layer: Int[Array, ""], k: Float[Array, "T K D"], v: Float[Array, "T K D"], slots: Int[Array, "T"]
    ) -> "KVCache":
        """Return the cache with token t's K and V at ``slots[t]``; a slot past the last one is not written."""
        return replace(self, data=self.kernels.write_kv(self.data, layer, k, v, slots))

    def keep(self, layer: Int[Array, ""], x: Float[Array, "T E"], slots: Int[Array, "T"]) -> "KVCache":
        """Return the cache with token t's input to ``layer`` at ``slots[t]``, as ``write`` does, if it keeps inputs."""
        if self.inputs is None:
            return self
        B = self.block_size
        return replace(self, inputs=self.inputs.at[slots // B, layer, slots % B].set(x, mode="drop"))

    def gather(self, ids: Int[Array, "m"], count: Int[Array, ""]) -> tuple[Num[Array, "L 2 K B W"], ...]:
        """Return the blocks ``ids``, each an array of its own; those after the first ``count`` are undefined."""
        staging = self.kernels.gather_blocks(self.data, ids, count)
        return tuple(staging[i] for i in range(len(ids)))

    def scatter(self, ids: Int[Array, "m"], count: Int[Array, ""], *pieces: Num[Array, "L 2 K B W"]) -> "KVCache":
        """Return the cache with the first ``count`` of m pieces in its blocks ``ids[:count]``."""
        return replace(self, data=self.kernels.scatter_blocks(self.data, ids, jnp.stack(pieces), count))

    def copy(self, source: Int[Array, ""], target: Int[Array, ""]) -> "KVCache":
        """Return the cache with what block ``source`` holds in block ``target`` as well."""
        return jax.tree.map(lambda blocks: blocks.at[target].set(blocks[source]), self)

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


def cache_shape(model: ModelConfig, cache: CacheConfig) -> tuple[int, int, int, int, int, int]:
    width = row_width(model.head_dim, cache_dtype(model))
    return (cache.num_blocks, model.num_layers, 2, model.num_kv_heads, cache.block_size, width)


def init_cache(model: ModelConfig, cache: CacheConfig, kernels: Kernels = REFERENCE) -> KVCache:
    """Return a cache of zeros; attention masks slots that are not written yet, whatever is there.

    With native kernels a block takes memory only once it is written.
    """
    dtype, of_inputs = jnp.dtype(model.dtype), (cache.num_blocks, model.num_layers, cache.block_size, model.hidden_size)
    inputs = kernels.zeros(of_inputs, dtype) if cache.keep_inputs else None
    return KVCache(kernels.zeros(cache_shape(model, cache), cache_dtype(model)), kernels, inputs)
