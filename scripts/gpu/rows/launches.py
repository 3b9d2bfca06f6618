"""Profile how steps are launched: kernels and CUDA graphs (XLA's command buffers) on the device, and gaps between them.
Steps are dispatched one after another, as the engine does."""

import gzip
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax

from scripts.gpu.result.report import Measurement, Run
from scripts.gpu.rows.bench import Bench, UnavailableError
from scripts.gpu.rows.kernels import kernels_for
from scripts.gpu.rows.step_times import filled_device, full_plan, served_config, step_cost

STEPS = 8
WARM_UP_STEPS = 3
"""XLA runs a program's first step as single launches, records its graphs in the second, and updates them later."""
GRAPH = "CudaGraphExec"
"""The name of a CUDA graph's run on a stream in XLA's profile, which does not list its kernels one by one."""
_STREAM = re.compile(r"Stream #")
_LAUNCH = re.compile(r"^cu(da)?(Launch|GraphLaunch|Memcpy|Memset)")
_MOST_HOST_EVENTS = 40
_NAME = 200
"""Most letters of a kernel's name."""

Event = dict[str, Any]


def profile(bench: Bench) -> Run:
    """Profile a served step, compiled with the XLA flags of this process."""
    load = bench.sizes.steps
    config = served_config(bench.sizes)
    plan = full_plan(load, config)
    kernels = kernels_for(bench)
    params = bench.shared.params_of(load.model, kernels)
    compiled = bench.shared.compiled_step(load.model, config, kernels)
    device = filled_device(load.model, config, params, compiled)

    def run() -> Measurement:
        device.load(plan)
        steady = replace(plan, admitted=())
        for _ in range(WARM_UP_STEPS):
            device.run(steady)
        measurement = profiled(lambda: device.run(steady), device.wait)
        moved, flops = step_cost(load.model, config, plan)
        return replace(measurement, bytes=moved, flops=flops, detail=measurement.detail | {"kernels": kernels.name})

    return run


def profiled(step: Callable[[], object], wait: Callable[[], object]) -> Measurement:
    """Profile STEPS steps after one that is not counted: the start of a profile leaves a gap.

    The steps before must have recorded and updated XLA's graphs. Raises UnavailableError as ``summarize`` does.
    """
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as directory:
        wait()
        with jax.profiler.trace(directory, profiler_options=options):
            for _ in range(STEPS + 1):
                step()
            wait()
        (path,) = Path(directory).rglob("*.trace.json.gz")
        events: list[Event] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return summarize(events, STEPS)


@dataclass(frozen=True)
class _Track:
    process: str
    thread: str


def summarize(events: Sequence[Event], steps: int) -> Measurement:
    """Summarize a trace in Chrome's format of ``steps`` steps and one before them, which is not counted.

    ``seconds`` are those of one step, from the first to the last counted event on the device. ``detail`` has, per step,
    the events on the device's streams and all kernels, and of all steps the host's calls. Raises UnavailableError if
    the trace has no stream of a device.
    """
    tracks = _tracks(events)
    runs = [(tracks[event["pid"], event.get("tid")], event) for event in events if event.get("ph") == "X"]
    device = [event for track, event in runs if _STREAM.search(track.thread) and "device" in track.process]
    if not device:
        names = sorted({track.process for track, _ in runs})
        raise UnavailableError(f"the profile has no stream of a device, only {', '.join(names) or 'nothing'}")
    device = sorted(device, key=lambda event: event["ts"])[len(device) // (steps + 1) :]
    on_host = [event for track, event in runs if "host" in track.process]
    host, host_seconds = Counter(event["name"] for event in on_host if _LAUNCH.match(event["name"])), _costs(on_host)
    spans = _merged((event["ts"], event["ts"] + event["dur"]) for event in device)
    total = spans[-1][1] - spans[0][0]
    busy = sum(end - start for start, end in spans)
    gaps = sorted((after[0] - before[1] for before, after in pairwise(spans)), reverse=True)
    graphs = [event for event in device if _is_graph(event)]
    costs, launches = _costs(device), Counter(event["name"] for event in device)
    detail = {
        "steps": steps,
        "busy_share": busy / total,
        "idle_share": 1 - busy / total,
        "idle_seconds": (total - busy) / steps / 1e6,
        "gaps": len(gaps) / steps,
        "largest_gaps_seconds": [gap / 1e6 for gap in gaps[:5]],
        "device_events": len(device) / steps,
        "command_buffers": bool(graphs) or any("GraphLaunch" in name for name in host),
        "graph_events": len(graphs) / steps,
        "graph_share": sum(event["dur"] for event in graphs) / sum(costs.values()),
        "host_calls": {name: count / (steps + 1) for name, count in host.most_common()},
        "host_seconds_by_event": {
            name[:_NAME]: time / (steps + 1) / 1e6 for name, time in host_seconds.most_common(_MOST_HOST_EVENTS)
        },
        "all_kernels": {
            name[:_NAME]: {"launches": launches[name] / steps, "seconds": time / steps / 1e6}
            for name, time in costs.most_common()
        },
        "tracks": dict(Counter(f"{track.process} {track.thread}"[:80] for track, _ in runs)),
    }
    return Measurement(seconds=total / steps / 1e6, detail=detail)


def _costs(events: Iterable[Event]) -> Counter[str]:
    """Return the microseconds of the events by name."""
    costs: Counter[str] = Counter()
    for event in events:
        costs[event["name"]] += event["dur"]
    return costs


def _tracks(events: Iterable[Event]) -> dict[tuple[Any, Any], _Track]:
    """Return the names of process and thread by their ids."""
    processes, threads, used = {}, {}, set()
    for event in events:
        if event.get("name") == "process_name":
            processes[event["pid"]] = event["args"]["name"]
        elif event.get("name") == "thread_name":
            threads[event["pid"], event["tid"]] = event["args"]["name"]
        elif event.get("ph") == "X":
            used.add((event["pid"], event.get("tid")))
    return {key: _Track(processes.get(key[0], ""), threads.get(key, "")) for key in used}


def _is_graph(event: Event) -> bool:
    in_graph = any("graph" in key and value not in (0, "0") for key, value in event.get("args", {}).items())
    return in_graph or event["name"].startswith(GRAPH)


def _merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Merge spans of time that overlap or touch."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
