"""Measure the step of a random-weight shape on the default device: compile time, step time, memory.

Full steps: as many decodes as there are rows, each at the given context, and a prompt chunk that fills the budget, or
of ``--chunk`` tokens.
``--floor``: compare with the least time of the step's bytes and FLOPs on this CPU.

    .venv/bin/python -m scripts.measure.step_time --budgets 16,32,64,128,256
    .venv/bin/python -m scripts.measure.step_time --budgets 64 --max-model-lens 1024,32768 --repeats 200
    .venv/bin/python -m scripts.measure.step_time --kernels XLA --dtype float32
    .venv/bin/python -m scripts.measure.step_time --shape qwen3-0.6b --budgets 16,64 --floor
    .venv/bin/python -m scripts.measure.step_time --shape qwen3.5-0.8b --budgets 16 --rows 1 --chunk 0 --floor
"""

import argparse
import json
import resource
import time
from dataclasses import replace
from itertools import count
from statistics import median, quantiles

from jaxgen.core.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.engine.engine import Engine
from jaxgen.engine.start.build import build_engine
from jaxgen.files.cache_dirs import open_cache_dirs
from jaxgen.kernels.choice import REFERENCE, choose
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.model import Params, init_params
from jaxgen.runner.model_runner import device_info
from jaxgen.runner.programs import compile_step
from scripts.loads.decodes import Load, fill
from scripts.loads.shapes import SHAPES
from scripts.measure.rates import bytes_per_second, flops_per_second
from scripts.measure.step_floor import Floor, step_floor

BLOCK_SIZE = 64


def kernels_for(name: str, model: DecoderConfig) -> Kernels:
    """XLA's kernels, or the choice of ``jaxgen serve`` on this machine."""
    if name == "XLA":
        return REFERENCE
    folder = open_cache_dirs().kernels
    if folder is None:
        raise SystemExit("native kernels need a cache directory that can be written")
    return choose(device_info(), model, BLOCK_SIZE, folder)


def build(
    model: DecoderConfig, params: Params, kernels: Kernels, budget: int, max_model_len: int, load: Load
) -> tuple[Engine, float]:
    """An engine with room for the load and for one sequence of full length, and the seconds its compilation took."""
    per_row = -(-(load.context + load.repeats + 64) // BLOCK_SIZE) + 1
    prompts = budget * load.repeats // BLOCK_SIZE + 64
    blocks = max(load.rows * per_row + prompts, -(-max_model_len // BLOCK_SIZE))
    config = EngineConfig(
        CacheConfig(BLOCK_SIZE, blocks, num_snapshots=0 if model.states else None),
        SchedulerConfig(budget, load.rows + 1, max_model_len, prefix_caching=False),
        seed=0,
        max_logit_bias=16,
    )
    started = time.perf_counter()
    compiled = compile_step(model, config, kernels)
    seconds = time.perf_counter() - started
    return build_engine(model, config, params, frozenset(), compiled=compiled), seconds


_numbers = count()
"""Of prompts: the last one of a call to ``measure`` may still run in the next."""


def measure(engine: Engine, load: Load, chunk: int) -> list[float]:
    """Return the seconds of each step with all rows decoding and, if ``chunk`` is not 0, ``chunk`` prompt tokens.

    The steps are an engine's, dispatched while the one before it runs: scheduling and reading tokens are in their
    times. ``jaxgen.runner.timing.time_step`` times a plan on a device alone.
    """
    seconds = []
    engine.step()  # the first returns at once: there is none before it to wait for
    for _ in range(load.repeats):
        if chunk:
            engine.add(Request(f"prompt-{next(_numbers)}", tuple(range(1, chunk + 1)), SamplingParams(max_tokens=1)))
        started = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - started)
    return seconds


def chunk_of(wanted: int | None, budget: int, load: Load) -> int:
    """Return the tokens of prompts in a step."""
    return max(budget - load.rows, 0) if wanted is None else wanted


def best_rates(dtype: str) -> tuple[float, float]:
    """Return bytes and FLOPs per second that this CPU gives at best, and print them."""
    rates = bytes_per_second(), flops_per_second(dtype)
    print(f"# limits with {dtype}: {rates[0] / 1e9:.1f} GB/s, {rates[1] / 1e9:.0f} GFLOP/s", flush=True)
    return rates


def beside_floor(floor: Floor, rates: tuple[float, float], seconds: float) -> dict[str, float]:
    """Return what the bytes and the FLOPs of a step take at best, in ms, and their share of its time."""
    by_bytes, by_flops = floor.num_bytes / rates[0], floor.flops / rates[1]
    return {
        "bytes_ms": round(1e3 * by_bytes, 2),
        "flops_ms": round(1e3 * by_flops, 2),
        "of_floor": round(max(by_bytes, by_flops) / seconds, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="88m")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--kernels", choices=("XLA", "chosen"), default="chosen")
    parser.add_argument("--budgets", default="16,32,64,128,256")
    parser.add_argument("--max-model-lens", default="2048")
    parser.add_argument("--context", type=int, default=300)
    parser.add_argument("--rows", type=int, default=15)
    parser.add_argument("--chunk", type=int, help="tokens of prompts in a step; default: what fills the budget")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--floor", action="store_true")
    args = parser.parse_args()
    model = SHAPES[args.shape]
    model = replace(model, dtype=args.dtype or model.dtype)
    kernels = kernels_for(args.kernels, model)
    params = init_params(model, seed=0)
    load = Load(args.context, args.rows, args.repeats)
    variants = [
        (budget, length)
        for budget in map(int, args.budgets.split(","))
        for length in map(int, args.max_model_lens.split(","))
    ]
    engines = {}
    for budget, length in variants:
        engines[budget, length], compile_seconds = build(model, params, kernels, budget, length, load)
        fill(engines[budget, length], load)
        print(f"# budget {budget}, max_model_len {length}: compiled in {compile_seconds:.1f} s", flush=True)
    # Variants take turns, so that a change of the machine's speed meets all of them.
    times: dict[tuple[int, int], list[float]] = {variant: [] for variant in variants}
    for _ in range(2):
        for (budget, length), engine in engines.items():
            half = replace(load, repeats=load.repeats // 2)
            times[budget, length] += measure(engine, half, chunk_of(args.chunk, budget, load))
    rates = best_rates(model.dtype) if args.floor else None
    for (budget, length), seconds in times.items():
        row = {
            "shape": args.shape,
            "dtype": model.dtype,
            "kernels": kernels.name,
            "budget": budget,
            "max_model_len": length,
            "rows": args.rows,
            "context": args.context,
            "step_ms_median": round(1e3 * median(seconds), 2),
            "step_ms_min": round(1e3 * min(seconds), 2),
            "step_ms_p90": round(1e3 * quantiles(seconds, n=10)[-1], 2),
        }
        if rates is not None:
            least = step_floor(model, rows=load.rows, context=load.context, chunk=chunk_of(args.chunk, budget, load))
            row |= beside_floor(least, rates, median(seconds))
        print(json.dumps(row))
    print(f"# peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
