"""Find the layer of a model that computes numbers that are not finite."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxgen.arrays import ArrayLike
from jaxgen.models.attention import plan_attention
from jaxgen.models.kv_cache import KVCache
from jaxgen.models.model import PackedParams, bind, graph_of
from jaxgen.models.residual import Unsummed
from jaxgen.models.walk import Layer, LayerContext, run_layer, walk
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
        x = model.embedded(batch)
        batch = model.with_layer_inputs(batch, x, cache.kernels)
        first_bad = jnp.where(is_finite(x, batch.num_tokens), num_layers, EMBEDDING)

        def visit(layer: Layer, at: LayerContext, carry: tuple[Any, KVCache, Any]) -> Any:
            x, cache, first_bad = carry
            x, cache = run_layer(layer, at, (x, cache))
            assert not isinstance(x, Unsummed), "the walk joins nothing"
            here = ~is_finite(x, batch.num_tokens) & (first_bad == num_layers)
            return x, cache, jnp.where(here, at.number, first_bad)

        _, cache, first_bad = walk(model.stacks, config, batch, cache.kernels, visit, (x, cache, first_bad))
        return cache, first_bad

    return find
