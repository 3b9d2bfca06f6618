"""A streaming device, and what decodes and calibrates with it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from jaxgen.cache_dirs import open_cache_dirs
from jaxgen.config import OPTConfig
from jaxgen.device import Device, device_info
from jaxgen.kernels import Kernels, choose, reference
from jaxgen.layerwise import compile_layers
from jaxgen.models import init_params
from jaxgen.offload.calibration import load_of, time_steps
from jaxgen.offload.layer_store import LayerStore
from jaxgen.offload.planner import ContextCost
from jaxgen.offload.staging import group_size
from jaxgen.offload.stream_rates import Split, StreamRates
from jaxgen.offload.streamed_device import StreamedDevice, Streaming
from jaxgen.programs import compile_rows, compile_step
from jaxgen.request import Request, SamplingParams
from jaxgen.scheduler import Scheduler
from jaxgen.sequence import Sequence
from jaxgen.step import StepOutput
from jaxgen.step_plan import StepPlan
from scripts.offload_benchmark.settings import Setting

Step = Callable[[StepPlan], StepOutput]


@dataclass(frozen=True)
class Generation:
    """What a batch decoded: tokens of each sequence, and of each step in which all decoded the seconds, and how many
    tokens were streamed, and projected of these."""

    tokens: list[list[int]]
    seconds: list[float]
    streamed: list[tuple[int, int]]


def generate(step: Step, setting: Setting, prompt: int, length: int, batch: int) -> tuple[list[list[int]], list[float]]:
    """Decode ``batch`` random prompts for ``length`` steps in which all decode: the tokens, and each step's seconds."""
    config = setting.config()
    scheduler = Scheduler(config.scheduler, config.cache)
    draw = np.random.default_rng(0)
    sequences = []
    max_tokens = length + setting.prompt_steps(prompt, batch)
    for index in range(batch):
        ids = tuple(draw.integers(3, setting.model.vocab_size, size=prompt).tolist())
        request = Request(f"r{index}", ids, SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True))
        sequences.append(Sequence(request, eos_token_ids=frozenset(), arrival=index, seed=0))
        scheduler.add(sequences[-1])
    seconds: list[float] = []
    while len(seconds) < length:
        plan = scheduler.schedule()
        decodes = len(plan.chunks) == batch == plan.num_tokens
        started = time.perf_counter()
        found = np.asarray(step(plan).tokens)
        if decodes:
            seconds.append(time.perf_counter() - started)
        scheduler.complete(plan, [int(found[i]) for i, chunk in enumerate(plan.chunks) if chunk.samples])
    return [sequence.tokens[prompt : prompt + length] for sequence in sequences], seconds


class Bench:
    """A device that streams, and one that does not, where that fits."""

    def __init__(self, setting: Setting, kernels: Kernels) -> None:
        self.setting, self.model, config = setting, setting.model, setting.config()
        sizes = {name: getattr(self.model, name) for name in ("hidden_size", "num_kv_heads", "head_dim")}
        itemsize = np.dtype(self.model.dtype).itemsize
        self.cost = ContextCost.of_model(num_layers=1, **sizes, kv_itemsize=itemsize, x_itemsize=itemsize)
        group = min(setting.batch, group_size(int(self.cost.kv_bytes) * setting.block_size))
        self.chunk = group * setting.block_size
        scheduler = config.scheduler
        num_open = LayerStore.most_open(scheduler.token_budget, scheduler.max_num_seqs, setting.block_size)
        programs = compile_layers(self.model, config, kernels, num_open=num_open, group=group, keep_inputs=True)
        self._kernels = kernels
        params, rows = init_params(self.model, seed=0), compile_rows(self.model, config)
        self.device = StreamedDevice(self.model, config, params, programs, rows, num_open=num_open)

    def run(self, split: Split, prompt: int, length: int, batch: int, *, overlap: bool = True) -> Generation:
        """Decode with the context in host memory."""
        asked: list[tuple[int, int]] = []

        def noted(tokens: int) -> int:
            asked.append((tokens, split(tokens)))
            return asked[-1][1]

        self.device.streaming = Streaming(noted, overlap)
        tokens, seconds = generate(self.device.run, self.setting, prompt, length, batch)
        return Generation(tokens, seconds, asked[-len(seconds) :])

    def expected(self, prompt: int, length: int, batch: int) -> list[list[int]]:
        """Tokens of the whole step, with all of the cache on the device."""
        return generate(self._whole.run, self.setting, prompt, length, batch)[0]

    @cached_property
    def _whole(self) -> Device:
        compiled = compile_step(self.model, self.setting.config(), self._kernels)
        return Device(self.model, self.setting.config(), init_params(self.model, seed=0), compiled)

    def calibrate(self, batch: int, steps: int) -> StreamRates:
        """In steps without overlap, of which half transfer all, and half project all."""
        config, size = self.setting.config(), self.setting.block_size
        loads = [load_of(config, rows=batch, blocks=prompt // size) for prompt in self.setting.calibrated]
        return StreamRates.fit(time_steps(self.device, loads, steps=steps, project=True), self.model.num_layers)

    def set_link(self, bytes_per_second: float | None) -> None:
        for link in (self.device.stream.up, self.device.stream.down):
            link.bytes_per_second = bytes_per_second


def kernels_here(model: OPTConfig, block_size: int) -> Kernels:
    """What ``jaxgen serve`` would choose, with weights as they are."""
    folder = open_cache_dirs().kernels
    if folder is None:
        return reference(device_info())
    return replace(choose(device_info(), model, block_size, folder), packed=None)
