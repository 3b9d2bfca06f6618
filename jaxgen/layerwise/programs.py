"""The step divided into programs by layer, for a cache of which the device holds one layer at a time.

    begin   rows, words of a plan, places of blocks      -> rows, batch, x: the first layer's input
    layers  one layer's parameters, pool, x, batch, l    -> pool, x: its output
    end     rows, batch, x: the last layer's output      -> rows, StepOutput

All layers of a stack whose parameters have the same formats share a program.

In sequence they compute what ``jaxgen.runner.step`` computes in one program. Between them, blocks from host memory can
be written to the pool: ``scatter`` writes K and V, ``project`` computes these from the layer's inputs.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxgen.core.config import EngineConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.kernels.choice import for_windows_as_data
from jaxgen.kernels.kernels import Kernels
from jaxgen.layerwise.layer_pool import LayerPool
from jaxgen.models.attention import plan_attention
from jaxgen.models.batch import StepBatch
from jaxgen.models.layer_pattern import NO_KIND, layers_of
from jaxgen.models.layer_stack import in_body
from jaxgen.models.mixed_weight import KernelWeight
from jaxgen.models.model import LAYERS, Graph, PackedParams, bind, bind_layer, graphs_apart, in_one_layer
from jaxgen.models.placement import abstract_packed_params
from jaxgen.models.residual import Unsummed
from jaxgen.models.separate_weights import SeparateWeights
from jaxgen.models.stacked_weight import StackedWeight
from jaxgen.models.walk import context_alone
from jaxgen.runner import step
from jaxgen.runner.program import Program, int32
from jaxgen.runner.row_state import RowState
from jaxgen.runner.step import StepOutput
from jaxgen.runner.step_layout import StepLayout

logger = logging.getLogger(__name__)

_BELOW = f"{LAYERS}."


@dataclass(frozen=True)
class WidthPrograms:
    """The compiled step of one width (in tokens); pool and rows are donated."""

    begin: Callable[..., tuple[RowState, StepBatch, jax.Array]]
    layers: tuple[Callable[..., tuple[LayerPool, jax.Array]], ...]
    """Of each layer."""
    end: Callable[..., tuple[RowState, StepOutput]]


@dataclass(frozen=True)
class LayerPrograms:
    """All compiled programs: steps by width, and programs that move blocks in groups of ``group``."""

    widths: dict[int, WidthPrograms]
    gather: Callable[..., Any]
    scatter: Callable[..., LayerPool]
    project: tuple[Callable[..., LayerPool], ...]
    """Of each layer; empty: inputs are not kept."""
    make_pool: Callable[[], LayerPool]
    group: int
    kernels: Kernels
    temporary_bytes: int
    """Bytes of the program that needs most, without its arguments."""


def take_apart(params: PackedParams, model: ModelConfig) -> tuple[PackedParams, tuple[PackedParams, ...]]:
    """Return the parameters outside the layers, and those of each layer, all on the device.

    Empties ``params``, so that at most one parameter is in memory twice.
    """
    ends: PackedParams = {}
    layers: list[PackedParams] = [{} for _ in range(model.num_layers)]
    for path in list(params):
        value = params.pop(path)
        if not path.startswith(_BELOW):
            ends[path] = jax.device_put(value)
            continue
        own, numbers = in_one_layer(model, path)
        for number, piece in zip(numbers, _split(value), strict=True):
            layers[number][own] = jax.device_put(piece)
    return ends, tuple(layers)


def _split(value: Any) -> tuple[Any, ...]:
    """Return each layer's part of a stacked parameter."""
    if isinstance(value, SeparateWeights):
        return value.weights
    if isinstance(value, KernelWeight | StackedWeight):
        return tuple(value.alone(layer) for layer in range(value.num_layers))
    return tuple(value)


def compile_layers(
    model: ModelConfig, config: EngineConfig, kernels: Kernels, *, num_open: int, group: int, keep_inputs: bool
) -> LayerPrograms:
    """Compile for LayerPools of ``num_open`` open blocks per layer, and parameters in the layout of these kernels.

    The kernels of the result are others where layers have different windows and these cannot take them as data.
    """
    kernels = layer_kernels(model, kernels)
    options = dict(kernels.compiler_options)

    def make_pool() -> LayerPool:
        rows = config.scheduler.max_num_seqs
        return LayerPool.zeros(model, config.cache, kernels, num_open=num_open, keep_inputs=keep_inputs, num_rows=rows)

    pool = jax.eval_shape(make_pool)
    ids, scalar = int32(group), int32()
    kv_piece = jax.ShapeDtypeStruct(pool.cache.data.shape[1:], pool.cache.data.dtype)
    x_piece = jax.ShapeDtypeStruct((config.cache.block_size, model.hidden_size), model.dtype)
    _, layers = _abstract_apart(model, kernels)
    graphs, stacks = graphs_apart(model)[1], model.layer_stacks

    def project(graph: Graph, params: PackedParams, pool: LayerPool, *args: Array) -> LayerPool:
        return pool.project(bind_layer(graph, params), model, *args)

    def compile_width(width: int) -> WidthPrograms:
        begin, of_stacks, end = width_programs(model, config, kernels, width, pool)

        def compile_layer(stack: int, shapes: PackedParams) -> Any:
            return replace(of_stacks[stack], shapes=(shapes, *of_stacks[stack].shapes[1:])).compile(options)

        of_layers = _for_each(stacks, layers, compile_layer)
        return WidthPrograms(begin.compile(options), of_layers, end.compile(options))

    budget = config.scheduler.token_budget
    widths = {width: compile_width(width) for width in {budget, config.narrow_width or budget}}
    gather = Program(LayerPool.gather, (pool, scalar)).compile()
    scatter = Program(LayerPool.scatter, (pool, ids, scalar, *[kv_piece] * group), donated=(0,)).compile()
    arguments = (pool, ids, ids, scalar, scalar, *[x_piece] * group)

    def compile_projection(stack: int, shapes: PackedParams) -> Any:
        return Program(partial(project, graphs[stack]), (shapes, *arguments), donated=(1,)).compile(options)

    projecting = _for_each(stacks, layers, compile_projection) if keep_inputs else ()
    programs: list[Any] = [gather, scatter, *projecting]
    for of_width in widths.values():
        programs += [of_width.begin, *of_width.layers, of_width.end]
    memory = [program.memory_analysis() for program in programs]
    temporary_bytes = max(m.temp_size_in_bytes + m.output_size_in_bytes - m.alias_size_in_bytes for m in memory)
    return LayerPrograms(widths, gather, scatter, projecting, make_pool, group, kernels, temporary_bytes)


def layer_kernels(model: ModelConfig, kernels: Kernels) -> Kernels:
    """Return the kernels of the layers' one program, in place of ``kernels``; log if they are others."""
    chosen = for_windows_as_data(kernels, model.windows)
    if chosen is not kernels:
        logger.warning("kernels by layer: %s, which is slower, because %s", chosen.name, chosen.reason)
    return chosen


Shapes = tuple[PackedParams, tuple[PackedParams, ...]]
"""Shapes of the parameters outside the layers, and of each layer's parameters."""


def _abstract_apart(model: ModelConfig, kernels: Kernels) -> Shapes:
    shapes: Shapes = jax.eval_shape(partial(take_apart, model=model), abstract_packed_params(model, kernels))
    return shapes


def _for_each(
    stacks: tuple[int, ...], layers: tuple[PackedParams, ...], compiled: Callable[[int, PackedParams], Any]
) -> tuple[Any, ...]:
    """Return a program for each layer, in these stacks and of these shapes: one for layers alike in both."""
    programs: dict[Any, Any] = {}
    result = []
    for stack, shapes in zip(stacks, layers, strict=True):
        leaves, structure = jax.tree.flatten(shapes)
        kind = (stack, structure, *leaves)
        if kind not in programs:
            programs[kind] = compiled(stack, shapes)
        result.append(programs[kind])
    return tuple(result)


def _layers_of_stacks(model: ModelConfig) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of the layers of each stack."""
    stacks = model.layer_stacks
    return tuple([tuple([n for n, of in enumerate(stacks) if of == stack]) for stack in range(max(stacks) + 1)])


def width_programs(
    model: ModelConfig, config: EngineConfig, kernels: Kernels, width: int, pool: Any
) -> tuple[Program, tuple[Program, ...], Program]:
    """Return the programs of WidthPrograms, in its order, before compilation, for LayerPools shaped like ``pool``.

    There is a program of layers for each stack, with the shapes of its first layer's parameters.
    """
    ends_graph, layer_graphs = graphs_apart(model)
    ends_shapes, layer_shapes = _abstract_apart(model, kernels)
    of_stacks = _layers_of_stacks(model)
    firsts = [layer_shapes[numbers[0]] for numbers in of_stacks]
    where = layers_of(model)
    layout = StepLayout(model, config, width)

    def begin(
        params: PackedParams, pool: LayerPool, rows: RowState, words: Int[Array, "W"], places: Int[Array, "N"]
    ) -> tuple[RowState, StepBatch, Float[Array, "T E"]]:
        rows, batch = step.begin(rows, words, layout)
        batch = plan_attention(model, pool.cache, pool.placed(batch, places))
        return rows, batch, bind(ends_graph, params).embedded(batch)

    def layer(
        graph: Graph,
        numbers: tuple[int, ...],
        params: PackedParams,
        pool: LayerPool,
        x: Float[Array, "T E"],
        batch: StepBatch,
        index: Int[Array, ""],
    ) -> tuple[LayerPool, Float[Array, "T E"]]:
        place = jnp.asarray(in_body([at.place for at in where], numbers, index), jnp.int32)
        bound, state = bind_layer(graph, params), None
        if where[numbers[0]].kind == NO_KIND:
            state = place
        else:
            batch = pool.of_layer(batch, place)
            pool = pool.keep(x, batch.slots[0])
        result, cache = bound(x, pool.cache, context_alone(bound, model, batch, kernels, index, state=state))
        assert not isinstance(result, Unsummed), "nothing follows in this program"
        return replace(pool, cache=cache), result

    def end(
        params: PackedParams, rows: RowState, x: Float[Array, "T E"], batch: StepBatch
    ) -> tuple[RowState, StepOutput]:
        ends = bind(ends_graph, params)
        rows, _, output = step.end(ends, ends.final(x, batch, kernels), rows, batch, layout)
        return rows, output

    rows, words, places = layout.rows, layout.words, int32(config.cache.num_blocks)
    _, batch, x = jax.eval_shape(begin, ends_shapes, pool, rows, words, places)
    return (
        Program(begin, (ends_shapes, pool, rows, words, places), donated=(2,)),
        tuple(
            [
                Program(partial(layer, graph, numbers), (first, pool, x, batch, int32()), donated=(1,))
                for graph, numbers, first in zip(layer_graphs, of_stacks, firsts, strict=True)
            ]
        ),
        Program(end, (ends_shapes, rows, x, batch), donated=(1,)),
    )
