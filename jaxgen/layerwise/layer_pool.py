"""The device's part of a streamed KV cache: one layer's blocks at a time, the blocks that are being written, and the
rows' states."""

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from jaxgen.arrays import ArrayLike
from jaxgen.core.config import CacheConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.batch import BlockTokens, StepBatch
from jaxgen.models.kv_cache import KVCache, cache_dtype, cache_shape, init_states
from jaxgen.models.walk import Layer, context_alone


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerPool:
    """Memory for the N blocks of the layer that is being computed, and for W open blocks of each of L layers that have
    K and V. The states of other layers are all here.

    An open block is one that steps still write to. A block's place is the same number for all layers. It is its id,
    below N, if its content is copied again for each layer. It is N + w if it is open block w. ``inputs``: the layer
    inputs X of open blocks, O = L * W, layer by layer; None: they are not kept.
    """

    cache: KVCache
    """[N + L * W, 1, 2, K, B, row]."""
    inputs: Float[ArrayLike, "O B E"] | None
    num_blocks: int = field(metadata={"static": True})
    num_open: int = field(metadata={"static": True})

    @classmethod
    def zeros(
        cls,
        model: ModelConfig,
        cache: CacheConfig,
        kernels: Kernels,
        *,
        num_open: int,
        keep_inputs: bool,
        num_rows: int = 0,
    ) -> "LayerPool":
        """Return a pool of zeros, since attention may read, and mask, slots that are not written yet.

        ``num_rows``: rows that have states.
        """
        _, L, *of_layer = cache_shape(model, cache)
        N, B, opened = cache.num_blocks, cache.block_size, L * num_open
        data = jnp.zeros((N + opened, 1, *of_layer), cache_dtype(model))
        inputs = jnp.zeros((opened, B, model.hidden_size), jnp.dtype(model.dtype)) if keep_inputs else None
        states = init_states(model, num_rows, kernels)
        return cls(KVCache((data,), kernels, states=states), inputs, N, num_open)

    def with_states(self, states: tuple[Float[ArrayLike, "..."], ...]) -> "LayerPool":
        """Return the pool with other states of rows."""
        return replace(self, cache=replace(self.cache, states=states))

    def placed(self, batch: StepBatch, places: Int[Array, "N"]) -> StepBatch:
        """Return a batch made for a cache of N blocks, with places instead of block ids. Padding writes nothing."""
        B, (slots,), (tables,) = self.cache.block_size, batch.slots, batch.block_tables
        block = jnp.minimum(slots // B, self.num_blocks - 1)
        placed = jnp.where(slots < self.num_blocks * B, places[block] * B + slots % B, self.cache.num_slots)
        return replace(batch, block_tables=(places[tables],), slots=(placed,))

    def of_layer(self, batch: StepBatch, layer: Int[Array, ""]) -> StepBatch:
        """Return a placed batch for one of the L layers, by number, with the block indices of ``cache``."""
        N, B, shift = self.num_blocks, self.cache.block_size, layer * self.num_open
        (tables,), (slots,) = batch.block_tables, batch.slots
        return replace(
            batch,
            block_tables=(tables + jnp.where(tables >= N, shift, 0),),
            slots=(slots + jnp.where(slots >= N * B, shift * B, 0),),
        )

    def keep(self, x: Float[Array, "T E"], slots: Int[Array, "T"]) -> "LayerPool":
        """Return the pool with layer inputs ``x`` of the tokens at these slots of ``cache``, if inputs are kept."""
        if self.inputs is None:
            return self
        opened, B, E = self.inputs.shape
        inputs = self.inputs.reshape(opened * B, E).at[slots - self.num_blocks * B].set(x, mode="drop")
        return replace(self, inputs=inputs.reshape(opened, B, E))

    def gather(self, place: Int[Array, ""]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Return an open block's content, layer by layer: K and V [1, 2, K, B, row], and inputs [B, E] if kept."""
        L = (len(self.cache.data) - self.num_blocks) // self.num_open
        ids = place + jnp.arange(L, dtype=jnp.int32) * self.num_open
        kv = self.cache.gather(ids, jnp.int32(L))
        if self.inputs is None:
            return kv, ()
        return kv, tuple(self.inputs[ids - self.num_blocks])

    def scatter(self, ids: Int[Array, "m"], count: Int[Array, ""], *pieces: Num[Array, "1 P K B W"]) -> "LayerPool":
        """Return the pool with the first ``count`` of m pieces of K and V in the layer's blocks ``ids[:count]``."""
        return replace(self, cache=self.cache.scatter(ids, count, *pieces))

    def project(
        self,
        layer: Layer,
        model: ModelConfig,
        ids: Int[Array, "m"],
        starts: Int[Array, "m"],
        count: Int[Array, ""],
        index: Int[Array, ""],
        *pieces: Float[Array, "B E"],
    ) -> "LayerPool":
        """Return the pool with K and V projected from the first ``count`` of m pieces of inputs to ``layer``.

        They are written to its blocks ``ids[:count]``, see ``Layer.keys_values``. ``starts``: the position of each
        block's first token. ``index``: the layer's number in the model.
        """
        positions = (starts[:, None] + jnp.arange(self.cache.block_size)).reshape(-1)
        tokens = BlockTokens.of(ids, count, positions, len(self.cache.data))
        at = context_alone(layer, model, tokens, self.cache.kernels, index)
        return replace(self, cache=layer.keys_values(jnp.concatenate(pieces), self.cache, at))
