"""Every mode against the others, paired, and the predictions against the clock."""

import json
from dataclasses import asdict
from statistics import median
from typing import Any

from jaxgen.offload.stream_rates import Split, StreamRates, transfer_all
from scripts.offload_benchmark.bench import Bench, Generation

PROJECTION_PART = 0.3
"""Seconds to project a token over seconds to transfer its KV, for the smoke's link. 0.42 for the paper's OPT-6.7B, at
312 TFLOP/s behind 32 GB/s; a small model's layer does more beside."""
Modes = dict[str, tuple[Split, bool]]
"""How much is projected, and whether copies and layers overlap, by name."""


def paired(bench: Bench, rates: StreamRates, case: tuple[int, int, int], modes: Modes, repeats: int) -> dict[str, Any]:
    """Every mode ``repeats`` times, one after another: seconds of the decoding, tokens, and predictions' errors."""
    runs: dict[str, list[Generation]] = {mode: [] for mode in modes}
    for repeat in range(repeats):
        order = list(modes)
        for mode in order[repeat % len(order) :] + order[: repeat % len(order)]:
            split, overlap = modes[mode]
            runs[mode].append(bench.run(split, *case, overlap=overlap))
    totals = {mode: [sum(run.seconds) for run in found] for mode, found in runs.items()}
    prompt, length, batch = case
    last = runs["planned"][-1].streamed[-1]
    return {
        "batch": batch,
        "prompt": prompt,
        "generate": length,
        "split": last[1] / max(last[0], 1),
        "seconds": {mode: median(times) for mode, times in totals.items()},
        "tokens_per_second": {mode: batch * length / median(times) for mode, times in totals.items()},
        "ratios": [ours / theirs for ours, theirs in zip(totals["planned"], totals["overlapped"], strict=True)],
        "prediction_errors": {mode: errors(bench, rates, found, modes[mode][1]) for mode, found in runs.items()},
        "tokens_equal": all(run.tokens == runs["overlapped"][0].tokens for found in runs.values() for run in found),
        "tokens": runs["overlapped"][0].tokens,
    }


def errors(bench: Bench, rates: StreamRates, runs: list[Generation], overlap: bool) -> float:
    """The median, over steps, of how far the predicted time is from the measured one, as a part of that."""
    unit, found = rates.unit(bench.cost, bench.chunk), []
    for run in runs:
        for seconds, (tokens, project) in zip(run.seconds, run.streamed, strict=True):
            stack, rest = rates.stack(tokens), tokens - project
            if overlap:
                predicted = stack.seconds(project, rest, unit=unit, chunk=bench.chunk)
            else:
                predicted = stack.seconds_without_overlap(project, rest, unit=unit)
            found.append(abs(predicted - seconds) / seconds)
    return median(found)


def modes_of(bench: Bench, rates: StreamRates) -> Modes:
    """All four; a fixed split is half of the context in whole copies."""
    return {
        "full": (transfer_all, False),
        "overlapped": (transfer_all, True),
        "fixed": (lambda tokens: tokens // 2 // bench.chunk * bench.chunk, True),
        "planned": (rates.planned_split(bench.cost, bench.chunk), True),
    }


def smoke(bench: Bench, bandwidth: float | None, repeats: int) -> dict[str, Any]:
    """The summary of one small setting. ``bandwidth`` None: by what projecting takes here, if that can be told."""
    setting = bench.setting
    (length,), batch = setting.generate, setting.batch
    if bandwidth is None:
        unhindered = bench.calibrate(batch, steps=4)
        if not unhindered.project_seconds:
            raise RuntimeError("projecting took no time that could be told from noise: choose the link's bandwidth")
        bandwidth = PROJECTION_PART * bench.cost.kv_bytes / unhindered.project_seconds
    bench.set_link(bandwidth)
    rates = bench.calibrate(batch, steps=4)
    modes = modes_of(bench, rates)
    two = {mode: modes[mode] for mode in ("overlapped", "planned")}
    first, *others = [(prompt, length, batch) for prompt in setting.prompts]
    latency = [paired(bench, rates, first, modes, repeats)]
    latency += [paired(bench, rates, case, two, 1) for case in others]
    throughput = paired(bench, rates, (setting.prompts[0], length, setting.larger_batch), two, repeats)
    bench.set_link(None)
    equal = [
        case["tokens_equal"] and case.pop("tokens") == bench.expected(case["prompt"], length, case["batch"])
        for case in (*latency, throughput)
    ]
    tokens_per_second = throughput["tokens_per_second"]
    return {
        "latency_ratio": median(latency[0]["ratios"]),
        "throughput_ratio": tokens_per_second["planned"] / tokens_per_second["overlapped"],
        "prediction_error_median": median(
            case["prediction_errors"][mode] for case in latency for mode in ("overlapped", "planned")
        ),
        "tokens_equal": all(equal),
        "bandwidth": bandwidth,
        "split": latency[0]["split"],
        "repeats": repeats,
        "rates": asdict(rates),
        "latency": latency,
        "throughput": throughput,
    }


def paper(bench: Bench, repeats: int) -> dict[str, Any]:
    """The paper's latency table, for each link: median seconds of the decoding by mode."""
    setting, table = bench.setting, []
    for link in setting.links:
        bench.set_link(link)
        rates = bench.calibrate(setting.batch, steps=6)
        for prompt in setting.prompts:
            for length in setting.generate:
                case = paired(bench, rates, (prompt, length, setting.batch), modes_of(bench, rates), repeats)
                del case["tokens"]
                table.append({"link": link, "rates": asdict(rates), **case})
                print(json.dumps(table[-1]), flush=True)
    return {"repeats": repeats, "cases": table}
