"""Compute K and V of whole blocks from their layer inputs, all layers in one program (KVPR, arXiv 2411.17089)."""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxgen.core.config import CacheConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.models.batch import BlockTokens
from jaxgen.models.kv_cache import KVCache
from jaxgen.models.model import PackedParams, bind, graph_of
from jaxgen.models.walk import Layer, LayerContext, walk
from jaxgen.runner.model_runner import ModelRunner
from jaxgen.runner.program import Program, int32, shapes_of

MEASURED_RUNS = 3


class Projection:
    """The program that projects at most ``group`` consecutive blocks. Compiles when it is made."""

    def __init__(self, model: ModelConfig, cache: CacheConfig, device: ModelRunner, *, group: int) -> None:
        """``device``: a runner whose cache keeps inputs."""
        self.group = group
        self._device, self._nowhere = device, (cache.num_blocks,) * group
        self._piece = jax.ShapeDtypeStruct((model.num_layers, cache.block_size, model.hidden_size), model.dtype)
        self._tokens = group * cache.block_size
        shapes = *shapes_of((device.params, device.cache)), int32(group), int32(), int32(), *[self._piece] * group
        self._run = Program(partial(project_blocks, model), shapes, donated=(1,)).compile()

    def __call__(self, blocks: tuple[int, ...], start: int, pieces: tuple[jax.Array, ...]) -> None:
        """Put layer inputs, [L, B, E] per block, and the K and V projected from them into blocks of the device's cache.

        ``start``: the position of the first block's first token.
        """
        count, device = len(blocks), self._device
        ids = np.zeros(self.group, np.int32)
        ids[:count] = blocks
        pieces += (pieces[0],) * (self.group - count)
        device.update_cache(partial(self._run, device.params), ids, np.int32(count), np.int32(start), *pieces)

    def measure(self) -> float:
        """Return seconds per token, from the fastest run of a whole group. Writes no block; waits for the device."""
        pieces = (jnp.zeros(self._piece.shape, self._piece.dtype),) * self.group
        seconds = []
        for _ in range(MEASURED_RUNS):
            self._device.wait()
            started = time.perf_counter()
            self(self._nowhere, 0, pieces)
            self._device.wait()
            seconds.append(time.perf_counter() - started)
        return min(seconds) / self._tokens


def project_blocks(
    model: ModelConfig,
    params: PackedParams,
    cache: KVCache,
    ids: Int[Array, "m"],
    count: Int[Array, ""],
    start: Int[Array, ""],
    *pieces: Float[Array, "L B E"],
) -> KVCache:
    """Return the cache with layer inputs, and K and V projected from them, in its blocks ``ids[:count]``.

    These are the first ``count`` of m pieces; the blocks hold consecutive tokens from position ``start`` on. For an id
    past the last block nothing is written.
    """
    m, (N, _, _, _, B, _) = len(ids), cache.data.shape
    stacks = bind(graph_of(model), params).stacks
    inputs = jnp.stack(pieces)
    tokens = BlockTokens.of(ids, count, start + jnp.arange(m * B, dtype=jnp.int32), N)

    def visit(layer: Layer, at: LayerContext, cache: KVCache) -> KVCache:
        return layer.keys_values(inputs[:, at.number].reshape(m * B, -1), cache, at)

    cache = cache.scatter_inputs(ids, count, inputs)
    projected: KVCache = walk(stacks, model, tokens, cache.kernels, visit, cache)
    return projected
