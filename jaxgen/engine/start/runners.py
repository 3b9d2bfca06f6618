"""Compile, make and start the runner that a configuration asks for."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from jaxgen.core.config import EngineConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.kernels.choice import REFERENCE
from jaxgen.kernels.kernels import Kernels
from jaxgen.layerwise.model_runner import CompiledLayers, LayerwiseRunner
from jaxgen.layerwise.programs import WidthPrograms, compile_layers
from jaxgen.layerwise.start import start_streaming
from jaxgen.models.model import PackedParams
from jaxgen.runner.interface import Runner
from jaxgen.runner.model_runner import ModelRunner
from jaxgen.runner.programs import CompiledStep, compile_rows, compile_step
from jaxgen.runner.separate_step import SeparateStep
from jaxgen.runner.state_snapshots import compile_states

Compiled = CompiledStep | CompiledLayers


def compile_for(model: ModelConfig, config: EngineConfig, kernels: Kernels = REFERENCE) -> Compiled:
    """Compile the programs of the runner that the configuration asks for."""
    streaming = config.streaming
    if streaming is None:
        return compile_step(model, config, kernels)
    layers = compile_layers(
        model,
        config,
        kernels,
        num_open=streaming.num_open,
        group=streaming.group,
        keep_inputs=streaming.keep_inputs,
    )
    return CompiledLayers(layers, compile_rows(model, config), compile_states(model, config))


def program_texts(compiled: Compiled) -> Iterator[str]:
    """Yield XLA's final text of each compiled program, except the narrow ones.

    A narrow program is used only where its bits are those of the wide one.
    """
    if isinstance(compiled, CompiledStep):
        yield from _texts(compiled.run)
    else:
        layers = compiled.layers
        yield from _texts(layers.widths[max(layers.widths)], *layers.project)


def narrow_texts(compiled: Compiled) -> Iterator[str]:
    """Yield XLA's final text of each narrow program."""
    if isinstance(compiled, CompiledStep):
        yield from _texts(*filter(None, [compiled.narrow]))
    else:
        widths = compiled.layers.widths
        yield from _texts(*(widths[width] for width in sorted(widths)[:-1]))


def _texts(*compiled: Any) -> Iterator[str]:
    """Yield the text of each program once. Where XLA shows none, the text is equal to no other."""
    found: list[str | None] = []
    programs: dict[Any, None] = {}
    for one in compiled:
        if isinstance(one, SeparateStep):
            found += one.texts
        else:
            parts = (one.begin, *one.layers, one.end) if isinstance(one, WidthPrograms) else (one,)
            programs |= dict.fromkeys(parts)
    for text in (*found, *(program.as_text() for program in programs)):
        yield text or uuid4().hex


def make_runner(model: ModelConfig, config: EngineConfig, params: PackedParams, compiled: Compiled) -> Runner:
    """Make the runner of these programs. If the cache is streamed, ``params`` are copied and the dict is emptied."""
    if isinstance(compiled, CompiledStep):
        return ModelRunner(model, config, params, compiled)
    assert config.streaming is not None, "programs by layer were compiled for it"
    return LayerwiseRunner(
        model,
        config,
        params,
        compiled.layers,
        compiled.rows,
        num_open=config.streaming.num_open,
        states=compiled.states,
    )


def start_runner(runner: Runner, model: ModelConfig, config: EngineConfig) -> None:
    """Let a runner that streams its cache measure links and steps, after the choice of programs; no-op for others."""
    if isinstance(runner, LayerwiseRunner) and config.streaming is not None:
        start_streaming(runner, model, config, config.streaming)
