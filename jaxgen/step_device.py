"""What an engine needs of a device that runs its plans, and which one a configuration asks for."""

from typing import Protocol, runtime_checkable

from jaxgen.config import EngineConfig, ModelConfig
from jaxgen.device import Device
from jaxgen.kernels import REFERENCE, Kernels
from jaxgen.layerwise import compile_layers
from jaxgen.models import PackedParams
from jaxgen.offload.stream_start import start_streaming
from jaxgen.offload.streamed_device import CompiledLayers, StreamedDevice
from jaxgen.programs import CompiledStep, compile_rows, compile_step
from jaxgen.stats import OffloadStats
from jaxgen.step import StepOutput
from jaxgen.step_plan import StepPlan

Compiled = CompiledStep | CompiledLayers


@runtime_checkable
class StepDevice(Protocol):
    """Parameters, cache, rows and compiled programs. Runs plans in the order given."""

    @property
    def runs_ahead(self) -> bool:
        """Whether ``run`` returns before its step is done."""
        ...

    @property
    def kernels(self) -> Kernels: ...

    def reset(self) -> None:
        """Forget everything but the parameters, also after a step that failed."""
        ...

    def load(self, plan: StepPlan) -> None:
        """Load the rows that the plan admits."""
        ...

    def run(self, plan: StepPlan, *, narrow: bool | None = None, again: bool = False) -> StepOutput:
        """Load the rows that the plan admits and run its step, by the narrow program where there is one for it, or as
        ``narrow`` says. ``again``: the same plan will be run once more, from the same state."""
        ...

    def wait(self) -> None:
        """Until nothing is on its way."""
        ...

    def uses_narrow(self, plan: StepPlan) -> bool: ...

    def disable_narrow(self) -> None: ...

    def offload_stats(self) -> OffloadStats | None:
        """What its host memory does; None: it uses none."""
        ...


def compile_for(model: ModelConfig, config: EngineConfig, kernels: Kernels = REFERENCE) -> Compiled:
    """The programs of the device that the configuration asks for."""
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
    return CompiledLayers(layers, compile_rows(model, config))


def make_device(model: ModelConfig, config: EngineConfig, params: PackedParams, compiled: Compiled) -> StepDevice:
    """The device that these programs are for. Empties ``params`` where the cache is streamed: they are copied."""
    if isinstance(compiled, CompiledStep):
        return Device(model, config, params, compiled)
    assert config.streaming is not None, "programs by layer were compiled for it"
    return StreamedDevice(
        model,
        config,
        params,
        compiled.layers,
        compiled.rows,
        num_open=config.streaming.num_open,
        bytes_per_second=config.streaming.simulated_bytes_per_second,
    )


def start_device(device: StepDevice, model: ModelConfig, config: EngineConfig) -> None:
    """Let it find out what it must know to run well, once it is known which programs it runs."""
    if isinstance(device, StreamedDevice) and config.streaming is not None:
        start_streaming(device, model, config, config.streaming)
