"""Host time of a step: from entering ``Engine.step`` to the program's dispatch, packing, fetching, completing."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import jax

from jaxgen.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from jaxgen.engine import Engine, compile_step
from jaxgen.models import Params
from jaxgen.request import Request, SamplingParams
from scripts.device_check.report import Measurement, Part
from scripts.device_check.sizes import Sizes
from scripts.step_time import Load, fill

BLOCK_SIZE = 64
MARKS = ("pack", "packed", "dispatch", "dispatched", "fetched")
PIECES = ("schedule", "pack", "prepare", "dispatch", "fetch", "complete")
"""The stretches between entering a step, the marks, and leaving it."""


def run(part: Part, sizes: Sizes, params_of: Callable[[ModelConfig], Params]) -> None:
    """Steps of decodes alone, and of decodes beside a prompt that fills the budget."""
    made: list[Probe] = []

    def probe() -> Probe:
        if not made:
            made.append(Probe(sizes, params_of(sizes.step_model)))
        return made[0]

    for name, prompts in (("decodes", False), ("full", True)):
        row = f"host_step_{sizes.step_name}_{sizes.host_budget}_{name}"
        part.measure(row, partial(_measure, probe, sizes, prompts))


class Probe:
    """An engine with marks: the clock at the points of a step that ``MARKS`` names."""

    def __init__(self, sizes: Sizes, params: Params):
        load = Load(sizes.host_context, sizes.rows, 4 * sizes.host_steps)
        config = _config(sizes, load)
        compiled = compile_step(sizes.step_model, config)
        self._run = compiled.run
        self._params = params
        self._batch: Any = None
        self.marks: dict[str, float] = {}
        marked = replace(compiled, run=self._mark(self._keep_batch, "dispatch", "dispatched"))
        self.engine = Engine(sizes.step_model, config, params, frozenset(), compiled=marked)
        # The engine offers no hooks, and needs none but for this.
        packer: Any = self.engine._packer
        packer.pack = self._mark(packer.pack, "pack", "packed")
        scheduler: Any = self.engine._scheduler
        scheduler.complete = self._mark(scheduler.complete, "fetched", "completed")
        fill(self.engine, load)
        if (running := self.engine.stats().num_running) != sizes.rows:
            raise RuntimeError(f"{running} of {sizes.rows} sequences decode; the log says why")

    def step(self) -> list[float]:
        """Seconds of each of ``PIECES``."""
        entered = time.perf_counter()
        events = self.engine.step()
        left = time.perf_counter()
        if errors := [event.error for event in events if event.error is not None]:
            raise RuntimeError(errors[0])
        clock = [entered, *(self.marks[name] for name in MARKS), left]
        return [after - before for before, after in pairwise(clock)]

    def device_seconds(self, steps: int) -> float:
        """Seconds of the last step's program when it is dispatched again and again and nothing is fetched."""
        engine: Any = self.engine
        batch = jax.device_put(self._batch)
        started = time.perf_counter()
        for _ in range(steps):
            engine._cache, engine._penalties, output = self._run(self._params, engine._cache, engine._penalties, batch)
        jax.block_until_ready(output)
        return (time.perf_counter() - started) / steps

    def _keep_batch(self, params: Any, cache: Any, penalties: Any, batch: Any) -> Any:
        self._batch = batch
        return self._run(params, cache, penalties, batch)

    def _mark(self, function: Callable[..., Any], before: str, after: str) -> Callable[..., Any]:
        def marked(*args: Any) -> Any:
            self.marks[before] = time.perf_counter()
            result = function(*args)
            self.marks[after] = time.perf_counter()
            return result

        return marked


def _config(sizes: Sizes, load: Load) -> EngineConfig:
    """Room for the decodes until the last step, and for the prompts beside them."""
    per_row = -(-(load.context + 4 * load.repeats + 64) // BLOCK_SIZE) + 1
    blocks = load.rows * per_row + 2 * sizes.host_budget // BLOCK_SIZE + 2
    scheduler = SchedulerConfig(sizes.host_budget, load.rows + 1, blocks * BLOCK_SIZE)
    return EngineConfig(CacheConfig(BLOCK_SIZE, blocks), scheduler, 0, 4)


def _measure(probe_of: Callable[[], Probe], sizes: Sizes, prompts: bool) -> Measurement:
    probe = probe_of()
    steps = []
    for i in range(sizes.host_steps):
        if prompts:
            prompt = tuple(range(1, sizes.host_budget - sizes.rows + 1))
            probe.engine.add(Request(f"prompt-{i}", prompt, SamplingParams(max_tokens=1)))
        steps.append(probe.step())
    total = median(map(sum, steps))
    device = probe.device_seconds(sizes.host_steps)
    pieces = {f"{name}_seconds": median(step[i] for step in steps) for i, name in enumerate(PIECES)}
    to_dispatch = median(sum(step[:3]) for step in steps)
    detail = {"to_dispatch_seconds": to_dispatch, **pieces, "device_seconds": device, "host_seconds": total - device}
    return Measurement(seconds=total, detail=detail | {"decode_rows": sizes.rows, "steps": len(steps)})
