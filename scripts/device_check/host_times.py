"""Host time of a step: scheduling, dispatching (loading rows and packing included) and completing."""

import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from jaxgen.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxgen.engine import Engine
from jaxgen.programs import compile_step
from jaxgen.request import Request
from jaxgen.sampling_params import SamplingParams
from scripts.device_check.kernels import BLOCK_SIZE, kernels_for
from scripts.device_check.part import Part, Shared
from scripts.device_check.report import Measurement
from scripts.device_check.sizes import Sizes
from scripts.step_time import Load, fill


def run(part: Part, sizes: Sizes, shared: Shared) -> None:
    """Steps of decodes alone, and of decodes beside a prompt that fills the budget."""
    made: list[Probe] = []

    def probe() -> Probe:
        if not made:
            made.append(Probe(sizes, shared))
        return made[0]

    for name, prompts in (("decodes", False), ("full", True)):
        row = f"host_step_{sizes.steps.name}_{sizes.host_budget}_{name}"
        part.measure(row, partial(_measure, probe, sizes, prompts))


class Probe:
    """An engine whose pieces are timed."""

    def __init__(self, sizes: Sizes, shared: Shared):
        model, rows = sizes.steps.model, sizes.steps.rows
        load = Load(sizes.host_context, rows, 4 * sizes.host_steps)
        config = _config(sizes, load)
        kernels = kernels_for(sizes, model)
        compiled = compile_step(model, config, kernels)
        params = shared.params_of(model, kernels)
        self.engine = Engine(model, config, params, frozenset(), compiled=compiled)
        self.seconds: dict[str, float] = defaultdict(float)
        # The engine offers no hooks, and needs none but for this.
        scheduler: Any = self.engine._scheduler
        device: Any = self.engine._device
        scheduler.schedule = self._time(scheduler.schedule, "schedule")
        scheduler.complete = self._time(scheduler.complete, "complete")
        device.run = self._time(device.run, "dispatch")
        fill(self.engine, load)
        if (running := self.engine.stats().num_running) != rows:
            raise RuntimeError(f"{running} of {rows} sequences decode; the log says why")

    def step(self) -> None:
        if errors := [event.error for event in self.engine.step() if event.error is not None]:
            raise RuntimeError(errors[0])

    def _time(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            started = time.perf_counter()
            result = function(*args)
            self.seconds[name] += time.perf_counter() - started
            return result

        return timed


def _config(sizes: Sizes, load: Load) -> EngineConfig:
    """Room for the decodes until the last step, and for the prompts beside them."""
    per_row = -(-(load.context + 4 * load.repeats + 64) // BLOCK_SIZE) + 1
    blocks = load.rows * per_row + 2 * sizes.host_budget // BLOCK_SIZE + 2
    scheduler = SchedulerConfig(sizes.host_budget, load.rows + 2, blocks * BLOCK_SIZE)
    return EngineConfig(CacheConfig(BLOCK_SIZE, blocks), scheduler, 0, 4)


def _measure(probe_of: Callable[[], Probe], sizes: Sizes, prompts: bool) -> Measurement:
    """Time per step over many: the device works on one while the host reads the one before and plans the next."""
    probe, rows = probe_of(), sizes.steps.rows
    probe.step()
    probe.seconds.clear()
    before = probe.engine.stats()
    started = time.perf_counter()
    for i in range(sizes.host_steps):
        if prompts:
            prompt = tuple((i + j) % 499 for j in range(sizes.host_budget - rows))
            params = SamplingParams(max_tokens=1)
            probe.engine.add(Request(f"prompt-{prompts}-{i}", prompt, params))
        probe.step()
    total = (time.perf_counter() - started) / sizes.host_steps
    host = (probe.engine.stats().host_seconds - before.host_seconds) / sizes.host_steps
    pieces = {f"{name}_seconds": seconds / sizes.host_steps for name, seconds in probe.seconds.items()}
    detail = {**pieces, "host_seconds": host, "host_share": host / total}
    return Measurement(seconds=total, detail=detail | {"decode_rows": rows, "steps": sizes.host_steps})
