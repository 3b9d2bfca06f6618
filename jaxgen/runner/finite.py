"""Find the layer of a model that computes numbers that are not finite."""

from collections.abc import Callable
from typing import Any, cast

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxgen.arrays import ArrayLike
from jaxgen.models import LAYERS, PackedParams, bind, graph_of
from jaxgen.models.attention import plan_attention
from jaxgen.models.kv_cache import KVCache
from jaxgen.models.layer_stack import Layer, fold_layers
from jaxgen.models.positions import Window
from jaxgen.runner.row_state import RowState
from jaxgen.runner.step import begin
from jaxgen.runner.step_layout import StepLayout

EMBEDDING = -1
"""Stands for the input of the first layer."""


def is_finite(x: Float[ArrayLike, "T D"], num_tokens: Int[ArrayLike, ""] | int) -> Any:
    """Return whether all numbers of the first ``num_tokens`` rows are finite; the others are padding."""
    return jnp.all(jnp.isfinite(x) | (jnp.arange(x.shape[0]) >= num_tokens)[:, None])


Finder = Callable[[PackedParams, KVCache, RowState, Int[Array, "W"]], tuple[KVCache, Int[Array, ""]]]


def make_finder(layout: StepLayout) -> Finder:
    """Return a function from the arguments of a step to the cache and the first layer whose output has NaN or infinity:
    EMBEDDING, or the number of layers if there is none.

    Pure; meant to be jitted with the cache donated. The layers are run as in a step, by the kernels of the cache.
    """
    config = layout.model
    graph, num_layers = graph_of(config), config.num_layers

    def find(params: PackedParams, cache: KVCache, rows: RowState, words: Int[Array, "W"]) -> Any:
        model = bind(graph, params)
        _, batch = begin(rows, words, layout)
        batch = plan_attention(config, cache, batch)
        layers = getattr(model, LAYERS)
        stack = cast(Layer, layers)
        positional = stack.positional(batch.positions)
        x = model.embedded(batch)
        first_bad = jnp.where(is_finite(x, batch.num_tokens), num_layers, EMBEDDING)

        def visit(layer: Layer, index: Int[Array, ""], window: Window, carry: tuple[Any, KVCache, Any]) -> Any:
            x, cache, first_bad = carry
            kept = cache.keep(index, x, batch.slots)
            x, cache = layer(x, kept, index, batch, positional.of_layer(index), window)
            here = ~is_finite(x, batch.num_tokens) & (first_bad == num_layers)
            return x, cache, jnp.where(here, index, first_bad)

        _, cache, first_bad = fold_layers(layers, num_layers, visit, (x, cache, first_bad), stack.windows)
        return cache, first_bad

    return find
