"""Measure the engine's steps: the device's idle time, and the host's scheduling, dispatching and completing.

The host works while the device does, so its time alone says nothing of the device. Dispatching has loading rows and
packing in it.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from itertools import count
from typing import Any

from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.engine.start.build import build_engine
from jaxgen.kernels.kernels import Kernels
from scripts.gpu.result.report import Measurement, Run
from scripts.gpu.rows.bench import Bench, Shared, UnavailableError
from scripts.gpu.rows.kernels import kernels_for
from scripts.gpu.rows.launches import profiled
from scripts.gpu.rows.sizes import Sizes
from scripts.gpu.rows.step_times import served_config
from scripts.loads.decodes import Load, fill


def measure(bench: Bench, kind: str) -> Run:
    """Measure the time per step of many: the device runs one while the host reads the one before and plans the next.

    ``kind``: "decodes" alone, or "full", with a prompt that fills the budget in each step.
    """
    probe = _probe(bench.sizes, bench.shared, kernels_for(bench))
    return lambda: _measured(bench.sizes, probe, kind)


def _measured(sizes: Sizes, probe: "Probe", kind: str) -> Measurement:
    rows, num_steps = sizes.steps.rows, sizes.host_steps
    prompt_tokens, prompts = sizes.served_budget - rows, count()

    def step() -> None:
        if kind == "full":
            i = next(prompts)
            prompt = tuple((i + j) % 499 for j in range(prompt_tokens))
            probe.engine.add(Request(f"prompt-{i}", prompt, SamplingParams(max_tokens=1)))
        probe.step()

    probe.fill()
    step()
    probe.seconds.clear()
    before = probe.engine.stats()
    started = time.perf_counter()
    for _ in range(num_steps):
        step()
    total = (time.perf_counter() - started) / num_steps
    host = (probe.engine.stats().host_seconds - before.host_seconds) / num_steps
    pieces = {f"{name}_seconds": seconds / num_steps for name, seconds in probe.seconds.items()}
    detail = {**pieces, "host_seconds": host, "kernels": probe.kernels.name, "decode_rows": rows, "steps": num_steps}
    return Measurement(seconds=total, detail=detail | _idle(step, probe.wait))


def _idle(step: Callable[[], None], wait: Callable[[], None]) -> dict[str, Any]:
    """Profile further steps for the device's idle time, or say why there is none; the times above are not profiled."""
    try:
        found = profiled(step, wait)
    except UnavailableError as missing:
        return {"not_profiled": str(missing)}
    return {name: found.detail[name] for name in ("idle_share", "idle_seconds", "largest_gaps_seconds")} | {
        "profiled_seconds": found.seconds
    }


class Probe:
    """An engine whose scheduling, dispatching and completing are timed, each apart from the device's time."""

    def __init__(self, sizes: Sizes, shared: Shared, kernels: Kernels):
        self.kernels = kernels
        model = sizes.steps.model
        self._load = Load(sizes.host_context, sizes.steps.rows, 4 * sizes.host_steps)
        self._filled = False
        config = served_config(sizes)
        compiled = shared.compiled_step(model, config, kernels)
        params = shared.params_of(model, kernels)
        self.engine = build_engine(model, config, params, frozenset(), compiled=compiled)
        self.seconds: dict[str, float] = defaultdict(float)
        # An observer is told that these have happened, not how long each took.
        scheduler: Any = self.engine.scheduler
        device: Any = self.engine.runner
        self.wait: Callable[[], None] = device.wait
        scheduler.schedule = self._time(scheduler.schedule, "schedule")
        scheduler.complete = self._time(scheduler.complete, "complete")
        device.run = self._time(device.run, "dispatch")

    def fill(self) -> None:
        """Let all sequences decode, if they do not yet."""
        if self._filled:
            return
        self._filled = True
        fill(self.engine, self._load)
        if (running := self.engine.stats().num_running) != self._load.rows:
            raise RuntimeError(f"{running} of {self._load.rows} sequences decode; the log says why")

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


@lru_cache(maxsize=1)
def _probe(sizes: Sizes, shared: Shared, kernels: Kernels) -> Probe:
    """Return the probe that all rows of a process share."""
    return Probe(sizes, shared, kernels)
