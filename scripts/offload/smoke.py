"""One small setting in a minute: does the planned split pay, and does it take what was predicted?"""

from dataclasses import asdict
from statistics import median

from jaxgen.layerwise.planning.rates import StreamRates
from scripts.offload.bench import Bench
from scripts.offload.modes import Modes, Results, compare, modes_of, of_bench, only
from scripts.offload.settings import PROJECTION_PART


def smoke(bench: Bench, bandwidth: float | None, repeats: int) -> Results:
    """The summary of one small setting. ``bandwidth`` None: by what projecting takes here, if that can be told."""
    setting = bench.setting
    (length,), batch = setting.generate, setting.batch
    bandwidth = scaled_link(bench, PROJECTION_PART) if bandwidth is None else bandwidth
    bench.set_link(bandwidth)
    rates = bench.calibrate(batch, setting.calibrating_steps)
    modes = modes_of(bench, rates)
    two = only(modes, "overlapped", "planned")
    first, *others = setting.prompts
    latency = [compared(bench, rates, (first, length, batch), modes, repeats)]
    latency += [compared(bench, rates, (prompt, length, batch), two, 1) for prompt in others]
    throughput = compared(bench, rates, (first, length, setting.larger_batch), two, repeats)
    bench.set_link(None)
    for case in (*latency, throughput):
        expected = bench.expected(case["prompt"], length, case["batch"])
        case["tokens_equal"] = case["tokens_equal"] and case.pop("tokens") == expected
    tokens_per_second = throughput["tokens_per_second"]
    return {
        "latency_ratio": median(latency[0]["ratios"]),
        "throughput_ratio": tokens_per_second["planned"] / tokens_per_second["overlapped"],
        "prediction_error_median": median(
            case["prediction_errors"][mode] for case in latency for mode in ("overlapped", "planned")
        ),
        "tokens_equal": all(case["tokens_equal"] for case in (*latency, throughput)),
        "bandwidth": bandwidth,
        "split": latency[0]["split"],
        "repeats": repeats,
        "rates": asdict(rates),
        "latency": latency,
        "throughput": throughput,
    }


def compared(
    bench: Bench, rates: StreamRates, case: tuple[int, int, int], modes: Modes, repeats: int, base: str = "overlapped"
) -> Results:
    """``case``: prompt, length and batch; ``base``: as ``compare`` has it."""
    prompt, length, batch = case
    setting = {"batch": batch, "prompt": prompt, "generate": length}
    return setting | compare(of_bench(bench, rates, *case), modes, repeats, base)


def scaled_link(bench: Bench, part: float) -> float:
    """Bytes a second of the link on which transferring a token's KV takes projecting it over ``part``."""
    bench.set_link(None)
    rates = bench.calibrate(bench.setting.batch, bench.setting.calibrating_steps)
    if not rates.project_seconds:
        raise RuntimeError("projecting took no time that could be told from noise: choose the link's bandwidth")
    return part * bench.cost.kv_bytes / rates.project_seconds
