"""The walk over a model's layers, and what each layer is told on it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxgen.arrays import ArrayLike
from jaxgen.core.model_config import ModelConfig
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.batch import BlockTokens, StepBatch
from jaxgen.models.kv_cache import KVCache
from jaxgen.models.layer_pattern import NO_KIND, layers_of
from jaxgen.models.layer_stack import LayerHere, fold_layers
from jaxgen.models.positions import Positional, Window, window_of_layer
from jaxgen.models.residual import Residual, Unsummed


@dataclass(frozen=True)
class LayerContext:
    """What a layer is told in addition to its input and the cache."""

    batch: StepBatch | BlockTokens
    """BlockTokens: K and V are written, and no row attends."""
    positional: Positional
    """That of this layer."""
    number: Int[ArrayLike, ""]
    """The layer's number in the model."""
    kind: int
    """The layer's kind of cache, or NO_KIND."""
    place: Int[ArrayLike, ""]
    """The layer's place in the array of its kind."""
    window: Window
    """None also where no row attends."""
    kernels: Kernels
    joins: bool = False
    """Whether the norm after the layer, of the next one or the last of all, may add the layer's last product."""

    @property
    def num_tokens(self) -> Int[ArrayLike, ""]:
        """The number of tokens before the padding."""
        return self.batch.num_tokens

    @property
    def slots(self) -> Int[ArrayLike, "T"]:
        """The slots of the tokens' K and V in the array of the layer's kind."""
        assert self.kind != NO_KIND, "only layers that keep K and V write them"
        return self.batch.slots[self.kind]


@runtime_checkable
class Layer(Protocol):
    """A decoder layer of a model: all layers if its parameters are stacked, one layer once they are sliced."""

    def positional(self, positions: Int[Array, "T"]) -> Positional:
        """Return what the layers make of the tokens' positions."""

    def __call__(self, x: Residual, cache: KVCache, at: LayerContext) -> tuple[Residual, KVCache]:
        """Return the layer's output, and the cache with its K and V. Only if ``at.joins`` output is unsummed."""

    def keys_values(self, x: Float[Array, "T D"], cache: KVCache, at: LayerContext) -> KVCache:
        """Return the cache with K and V of tokens whose inputs to the layer are ``x`` (KVPR, arXiv 2411.17089).

        They equal what the layer writes in a step: bit for bit if the rows of a product do not depend on their number,
        else up to rounding. Slots are whole blocks, as for ``KVCache.write``.
        """


Visit = Callable[[Layer, LayerContext, Any], Any]


def walk(
    stacks: Sequence[nnx.Module],
    config: ModelConfig,
    batch: StepBatch | BlockTokens,
    kernels: Kernels,
    visit: Visit,
    carry: Any,
    *,
    joins: bool = False,
) -> Any:
    """Apply ``visit`` to each layer of a model's ``stacks``, what it is told, and ``carry``, in order.

    Returns the last carry. A cache is part of it, since XLA updates a carry in place and would copy a scanned array.
    ``joins``: as in LayerContext, if the kernels do so.
    """
    positional = [cast(Layer, stack).positional(batch.positions) for stack in stacks]

    def visit_one(layer: Layer, here: LayerHere, carry: Any) -> Any:
        of_layer, joined = positional[here.stack].of_layer(here.number), joins and kernels.joins_sums
        context = LayerContext(batch, of_layer, here.number, here.kind, here.place, here.window, kernels, joined)
        return visit(layer, context, carry)

    # K and V depend on no window, so one trace of layers that only write them serves all.
    layers = layers_of(config, len(batch.slots), windows=isinstance(batch, StepBatch))
    return fold_layers(stacks, layers, visit_one, carry, unrolled=kernels.separate_layers)


def context_alone(
    layer: Layer,
    config: ModelConfig,
    batch: StepBatch | BlockTokens,
    kernels: Kernels,
    number: Int[Array, ""],
    *,
    state: Int[ArrayLike, ""] | None = None,
) -> LayerContext:
    """Return what layer ``number`` is told where the cache's one array has no other layer.

    ``state``: the place of its state, if it has one in place of K and V.
    """
    positional = layer.positional(batch.positions).of_layer(number)
    window = window_of_layer(config.windows if isinstance(batch, StepBatch) else (), number)
    kind, place = (0, jnp.int32(0)) if state is None else (NO_KIND, state)
    return LayerContext(batch, positional, number, kind, place, window, kernels)


def run_layer(layer: Layer, at: LayerContext, carry: tuple[Residual, KVCache]) -> tuple[Residual, KVCache]:
    """Return the layer's output, and the cache with its K and V, and with its input if the cache keeps inputs."""
    x, cache = carry
    if not isinstance(x, Unsummed) and at.kind != NO_KIND:
        cache = cache.keep(at.number, x, at.slots)
    return layer(x, cache, at)
