"""Measure how long the host keeps a GPU waiting: an engine, its scheduler and its packing, and a device that sleeps.

A step sleeps for as long as one took on an H200 (docs/results). The device waits if it ends a step before the host has
dispatched the next one: ``idle`` is that time's share. What a driver takes to start programs is not in it.

    .venv/bin/python -m scripts.measure.host_delay [--steps 200]
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

from jaxgen.core.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.step_plan import StepPlan
from jaxgen.runner.packer import Packer
from jaxgen.runner.step import StepOutput
from scripts.loads.large import LLAMA3_8B
from scripts.measure.sleeping_device import sleeping_engine
from scripts.measure.step_time import Load, fill

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
MEASURED = {64: "step_llama3_8b_64", 256: "step_llama3_8b_256", 1024: "step_llama3_8b_1024"}
SEPARATE = RESULTS / "gpu-dispatch-2026-11-26.json", "separate 32"
"""The step of 256 tokens as the programs that are served now."""
BLOCK_SIZE, CONTEXT = 64, 1024


def step_seconds() -> dict[int, float]:
    """Return the seconds of a step of Llama-3-8B on an H200 by its tokens, one step after another."""
    rows = json.loads((RESULTS / "nvidia-h200-2026-11-26.json").read_text())["rows"]
    by_name = {row["name"]: row for row in rows}
    seconds = {tokens: by_name[name]["detail"]["overlapped_seconds"] for tokens, name in MEASURED.items()}
    path, name = SEPARATE
    return seconds | {256: json.loads(path.read_text())[name]["overlapped_seconds"]}


def measure(tokens: int, rows: int, seconds: float, steps: int) -> dict[str, Any]:
    """Run steps of ``rows`` decodes and, if that leaves room, a prompt that fills the rest."""
    blocks = (rows + 64) * -(-(CONTEXT + 4 * steps + 64) // BLOCK_SIZE)
    scheduler = SchedulerConfig(tokens, min(rows + 1, tokens), CONTEXT + 8 * steps + 128, prefix_caching=False)
    config = EngineConfig(CacheConfig(BLOCK_SIZE, blocks), scheduler, 0, 16)
    engine = sleeping_engine(LLAMA3_8B, config, lambda _: seconds)
    device: Any = engine._device  # the engine has no hooks, and would need them only here
    fill(engine, Load(CONTEXT, rows, steps))
    idle = watch(device, config)
    engine.step()
    before, began = engine.stats().host_seconds, time.monotonic()
    idle.clear()
    for number in range(steps):
        if tokens > rows:
            prompt = tuple(1 + (number * 7 + i) % 499 for i in range(tokens - rows))
            engine.add(Request(f"prompt-{number}", prompt, SamplingParams(max_tokens=1)))
        engine.step()
    total = time.monotonic() - began
    return {
        "tokens": tokens,
        "rows": rows,
        "step_ms": round(1e3 * seconds, 2),
        "host_us": round(1e6 * (engine.stats().host_seconds - before) / steps),
        "idle_percent": round(100 * sum(idle) / total, 2),
    }


def watch(device: Any, config: EngineConfig) -> list[float]:
    """Make a device pack each plan as a real one does. Return a list that grows with each step by the seconds in which
    the device had nothing to do before it."""
    pack, run, idle = Packer(config).pack, device.run, list[float]()

    def timed(plan: StepPlan, **options: Any) -> StepOutput:
        pack(plan)
        idle.append(max(0.0, time.monotonic() - device._due))
        result: StepOutput = run(plan, **options)
        return result

    device.run = timed
    return idle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3, help="the median of so many is told")
    chosen = parser.parse_args()
    for tokens, seconds in step_seconds().items():
        for rows in {min(tokens, 32), min(tokens, 256)}:
            repeats = [measure(tokens, rows, seconds, chosen.steps) for _ in range(chosen.repeats)]
            print(
                json.dumps(
                    repeats[0] | {name: median(one[name] for one in repeats) for name in ("host_us", "idle_percent")}
                )
            )


if __name__ == "__main__":
    main()
