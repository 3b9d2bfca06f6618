"""The compiled programs of an engine. All are compiled before the engine is ready, and none after that."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import batched
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxgen.core.config import EngineConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.step_plan import StepPlan
from jaxgen.kernels.choice import REFERENCE
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.kv_cache import KVCache, init_cache
from jaxgen.models.model import graph_of
from jaxgen.runner.devices import Devices
from jaxgen.runner.program import Program, int32
from jaxgen.runner.row_state import (
    MASKS_AT_ONCE,
    RowLoader,
    RowState,
    init_rows,
    load_allowed,
    load_penalties,
    load_row,
    mask_words,
)
from jaxgen.runner.separate_step import SeparateStep
from jaxgen.runner.state_snapshots import StatePrograms, compile_states
from jaxgen.runner.step import StepOutput, make_step
from jaxgen.runner.step_layout import StepLayout

CompiledProgram = Callable[..., tuple[KVCache, RowState, Array | None, StepOutput]]
"""A compiled Step, which takes the words as a numpy array too."""
CopyBlock = Callable[[KVCache, Any, Any], KVCache]
"""A compiled ``KVCache.copy``, which takes ids of blocks as int32 and updates the cache in place."""


@dataclass(frozen=True)
class RowPrograms:
    """Programs that load rows' states before a step."""

    load_row: Callable[..., RowState]
    load_penalties: Callable[..., RowState]
    load_allowed: Callable[..., RowState]

    def load(self, rows: RowState, plan: StepPlan, loader: RowLoader, *, in_step: int = 0) -> RowState:
        """Return the rows with the plan's ``loaded`` sequences, and allowed tokens as needed.

        ``in_step``: how many of the first of these sequences the step loads itself.
        """
        for sequence in plan.loaded[in_step:]:
            rows = self.load_row(rows, loader.words(sequence))
        for sequence in plan.admitted:
            if sequence.params.has_penalties:
                rows = self.load_penalties(rows, *loader.penalties(sequence))
        for sequences in batched(plan.constrained, MASKS_AT_ONCE):
            rows = self.load_allowed(rows, *loader.allowed(sequences))
        return rows


@dataclass(frozen=True)
class CompiledStep:
    """The compiled step, the programs that load rows before it, and the step's memory by XLA's analysis, in bytes.

    ``temporary_bytes``: memory on top of parameters, cache and rows, while the previous step's output is not read yet.
    It includes the products buffers of both programs.
    """

    run: CompiledProgram
    narrow: CompiledProgram | None
    """The step of ``config.narrow_width`` tokens, for plans of decodes only."""
    rows: RowPrograms
    copy_block: CopyBlock
    kernels: Kernels
    temporary_bytes: int
    aliased_bytes: int
    states: StatePrograms | None = None
    """None: there are no snapshots of states."""
    devices: Devices | None = None
    """The devices that run the programs together; None: one does."""


def compile_step(
    model: ModelConfig,
    config: EngineConfig,
    kernels: Kernels = REFERENCE,
    *,
    compiler_options: Mapping[str, str] | None = None,
) -> CompiledStep:
    """Compile the step of a model and configuration with these kernels. Cache and rows are donated. A part of a model
    that is divided has the programs of all its devices.

    ``compiler_options``: options of XLA, in addition to the kernels' own.
    """
    width, options = config.scheduler.token_budget, dict(kernels.compiler_options) | dict(compiler_options or {})
    wide: Any = _compile_width(model, config, kernels, width, options)
    narrow: Any = _compile_width(model, config, kernels, config.narrow_width, options) if config.narrow_width else None
    widths = (width, config.narrow_width) if config.narrow_width else (width,)
    buffers = jax.tree.leaves(
        jax.eval_shape(lambda: [init_products_buffer(model, config, kernels, width) for width in widths])
    )
    return CompiledStep(
        wide,
        narrow,
        compile_rows(model, config),
        _compile_copy(model, config, kernels),
        kernels,
        max(_temporary_bytes(_analyses(program)) for program in (wide, narrow) if program is not None)
        + sum(buffer.size * buffer.dtype.itemsize for buffer in buffers),
        _analyses(wide)[0].alias_size_in_bytes,
        compile_states(model, config),
        Devices.of(model),
    )


def _analyses(program: Any) -> list[Any]:
    """Return XLA's analyses of memory, of jaxlib's own type, of the programs of a step."""
    return program.analyses if isinstance(program, SeparateStep) else [program.memory_analysis()]


def _temporary_bytes(analyses: list[Any]) -> int:
    outputs = sum(analysis.output_size_in_bytes - analysis.alias_size_in_bytes for analysis in analyses)
    return int(max(analysis.temp_size_in_bytes for analysis in analyses) + 2 * outputs)


def compile_rows(model: ModelConfig, config: EngineConfig) -> RowPrograms:
    """Compile the programs that load rows. The rows are donated."""
    rows = jax.eval_shape(lambda: init_rows(config, model.vocab_size))
    row, counts = int32(RowLoader(config, model.vocab_size).num_words), int32(model.vocab_size)
    seen = jax.ShapeDtypeStruct((model.vocab_size,), jnp.bool_)
    indices, allowed = int32(MASKS_AT_ONCE), int32(MASKS_AT_ONCE, mask_words(model.vocab_size))
    program = partial(Program, donated=(0,), devices=Devices.of(model))
    return RowPrograms(
        program(load_row, (rows, row)).compile(),
        program(load_penalties, (rows, int32(), counts, seen)).compile(),
        program(load_allowed, (rows, indices, allowed)).compile(),
    )


def _compile_copy(model: ModelConfig, config: EngineConfig, kernels: Kernels) -> CopyBlock:
    cache = jax.eval_shape(lambda: init_cache(model, config.cache, kernels, num_rows=config.scheduler.max_num_seqs))
    shapes = cache, int32(), int32()
    copy: Any = Program(KVCache.copy, shapes, donated=(0,), devices=Devices.of(model)).compile()
    return copy


def step_program(model: ModelConfig, config: EngineConfig, kernels: Kernels, width: int) -> Program:
    """Return the step of ``width`` tokens. It updates cache, rows and products buffer in place."""
    layout = StepLayout(model, config, width)
    # The buffer stays an argument although nothing reads it: the products take its memory.
    shapes = *layout.shapes(kernels), layout.products
    step, devices = make_step(graph_of(model), layout), Devices.of(model)
    return Program(step, shapes, donated=(1, 2, 4), keep_unused=True, devices=devices)


def init_products_buffer(model: ModelConfig, config: EngineConfig, kernels: Kernels, width: int) -> Array | None:
    """Return memory for the head's products of a step of ``width`` tokens; None: the step needs none from outside.

    It is kept between steps. glibc gives temporaries of more than 32 MiB back to Linux after each step, and the next
    one would wait for every page that it touches. With native kernels a row takes memory only once it is written.
    """
    products = StepLayout(model, config, width).products
    return None if kernels.separate_sampling else kernels.zeros(products.shape, products.dtype)


def _compile_width(
    model: ModelConfig, config: EngineConfig, kernels: Kernels, width: int, compiler_options: dict[str, str]
) -> Any:
    if kernels.separate_sampling:
        return SeparateStep(model, config, kernels, width, compiler_options)
    return step_program(model, config, kernels, width).compile(compiler_options)
