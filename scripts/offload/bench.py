"""A streaming device, and what decodes and calibrates with it."""

from dataclasses import dataclass, replace
from functools import cached_property

from jaxgen.cache.cache_format import CacheFormat
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.step_plan import StepPlan
from jaxgen.files.cache_dirs import open_cache_dirs
from jaxgen.kernels.choice import choose, reference
from jaxgen.kernels.kernels import Kernels
from jaxgen.layerwise.calibration import load_of, run_in_turn, time_steps
from jaxgen.layerwise.model_runner import LayerwiseRunner, Streaming
from jaxgen.layerwise.planning.layer_store import LayerStore
from jaxgen.layerwise.planning.rates import Split, StreamRates
from jaxgen.layerwise.programs import compile_layers
from jaxgen.models.model import init_params
from jaxgen.offload.planning.restore_plan import ContextCost
from jaxgen.offload.planning.staging import group_size
from jaxgen.runner.model_runner import ModelRunner, device_info
from jaxgen.runner.programs import compile_rows, compile_step
from jaxgen.runner.step import StepOutput
from scripts.offload.generation import Batch, Generation, decode
from scripts.offload.settings import Setting
from scripts.offload.slow_links import simulate


@dataclass(frozen=True)
class Mode:
    """A way to bring contexts. ``overlap`` False: as ``run_in_turn`` does."""

    split: Split
    overlap: bool = True


class Bench:
    """A device that streams, and one that does not, where that fits."""

    def __init__(self, setting: Setting, kernels: Kernels) -> None:
        self.setting, self.model, self.config = setting, setting.model, setting.config()
        layer = CacheFormat.of(self.model, setting.block_size).of_layer
        self.cost = ContextCost.of(layer)
        group = min(setting.batch, group_size(layer.block_bytes))
        self.chunk = group * setting.block_size
        scheduler = self.config.scheduler
        num_open = LayerStore.most_open(scheduler.token_budget, scheduler.max_num_seqs, setting.block_size)
        programs = compile_layers(self.model, self.config, kernels, num_open=num_open, group=group, keep_inputs=True)
        self._kernels = kernels
        self.link: float | None = None
        self.device = LayerwiseRunner(
            self.model,
            self.config,
            dict(init_params(self.model, seed=0)),
            programs,
            compile_rows(self.model, self.config),
            num_open=num_open,
        )

    def run(self, mode: Mode, prompt: int, length: int, batch: int) -> Generation:
        """Decode with the context in host memory. Only the decoding meets the simulated link."""
        device, links = self.device, self.device.stream.links
        asked: list[tuple[int, int]] = []
        idle = 0.0

        def noted(tokens: int) -> int:
            asked.append((tokens, mode.split(tokens)))
            return asked[-1][1]

        def ready() -> None:
            nonlocal idle
            device.wait()
            simulate(links, self.link)
            idle = links.idle_seconds

        def step(plan: StepPlan) -> StepOutput:
            return device.run(plan) if mode.overlap else run_in_turn(device, plan)[0]

        device.streaming = Streaming(noted)
        simulate(links, None)
        tokens, seconds = decode(step, Batch(self.setting, prompt, length, batch), ready)
        return Generation(tokens, seconds, asked[-len(seconds) :], links.idle_seconds - idle)

    def predicted(self, rates: StreamRates, mode: Mode, tokens: int, project: int) -> float:
        """Seconds of a step that streams the given tokens."""
        unit, stack, rest = rates.unit(self.cost, self.chunk), rates.stack(tokens), tokens - project
        if mode.overlap:
            return stack.seconds(project, rest, unit=unit, chunk=self.chunk)
        link = project * unit.x + rest * unit.kv
        device = (project * unit.project if project else 0.0) + stack.device_seconds
        return stack.other_seconds + stack.layers * (link + device)

    def expected(self, prompt: int, length: int, batch: int) -> list[list[int]]:
        """Tokens of the whole step, with all of the cache on the device."""
        return decode(self._whole.run, Batch(self.setting, prompt, length, batch))[0]

    @cached_property
    def _whole(self) -> ModelRunner:
        compiled = compile_step(self.model, self.config, self._kernels)
        return ModelRunner(self.model, self.config, init_params(self.model, seed=0), compiled)

    def calibrate(self, batch: int, steps: int) -> StreamRates:
        """In steps without overlap, of which half transfer all, and half project all."""
        size = self.setting.block_size
        loads = [load_of(self.config, rows=batch, blocks=prompt // size) for prompt in self.setting.calibrated]
        return StreamRates.fit(time_steps(self.device, loads, steps=steps, project=True), self.model.num_layers)

    def set_link(self, bytes_per_second: float | None) -> None:
        self.link = bytes_per_second
        simulate(self.device.stream.links, bytes_per_second)


def kernels_here(model: ModelConfig, block_size: int) -> Kernels:
    """What ``jaxgen serve`` would choose, with weights as they are."""
    folder = open_cache_dirs().kernels
    if folder is None:
        return reference(device_info())
    return replace(choose(device_info(), model, block_size, folder), packed=None)
