"""Measure the steps of one model in programs of different numbers of rows, of which few may be used.

A closed number of clients decodes in each program; they take turns. Page faults are those of the whole process.

    .venv/bin/python -m scripts.measure.program_rows --shape gemma-3-270m --rows 64,8,1
    .venv/bin/python -m scripts.measure.program_rows --shape qwen3-0.6b-152k --rows 64 --clients 16
"""

import argparse
import resource
import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from jaxgen.core.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.engine.engine import Engine
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.model import PackedParams
from jaxgen.models.placement import pack_params
from jaxgen.runner.programs import compile_step
from jaxgen.sizing.token_budget import CPU_WIDTH
from jaxgen.weights.weight_formats import quantized_config
from scripts.measure.shapes import SHAPES
from scripts.measure.step_profile import params_of
from scripts.measure.step_time import BLOCK_SIZE, kernels_for

PROMPT_TOKENS, LONGEST, STEPS = 64, 1024, 6
"""Tokens of a prompt and of a context, and steps of a turn."""


def decoding(model: DecoderConfig, kernels: Kernels, params: PackedParams, rows: int, clients: int) -> Engine:
    """An engine with ``rows`` rows in which ``clients`` decode."""
    cache = CacheConfig(BLOCK_SIZE, clients * LONGEST // BLOCK_SIZE)
    scheduler = SchedulerConfig(CPU_WIDTH, rows, LONGEST, prefix_caching=False)
    config = EngineConfig(cache, scheduler, seed=0, max_logit_bias=300, run_ahead=False)
    compiled = compile_step(model, config, kernels)
    engine = Engine(model, config, dict(params), frozenset(), compiled=compiled)
    wanted = SamplingParams(max_tokens=LONGEST - PROMPT_TOKENS, temperature=0.0, ignore_eos=True)
    for client in range(clients):
        engine.add(Request(f"{client}", tuple(range(3 + client, 3 + client + PROMPT_TOKENS)), wanted))
    started: set[str] = set()
    while len(started) < clients:
        started |= {event.request_id for event in engine.step()}
    return engine


def measured(engine: Engine) -> Iterator[tuple[float, int]]:
    """Yield the ms and the page faults of each step of a turn."""
    for _ in range(STEPS):
        faults, started = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
        engine.step()
        seconds = time.perf_counter() - started
        yield 1e3 * seconds, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="gemma-3-270m")
    parser.add_argument("--quantization", choices=("none", "int8", "int4"), default="int8")
    parser.add_argument("--rows", default="64,8,1")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--turns", type=int, default=20)
    args = parser.parse_args()
    model = quantized_config(replace(SHAPES[args.shape], dtype="bfloat16"), args.quantization)
    kernels = kernels_for("chosen", model)
    params = pack_params(model, params_of(model), kernels)
    sizes = [int(rows) for rows in args.rows.split(",")]
    engines = {rows: decoding(model, kernels, params, rows, args.clients) for rows in sizes}
    steps_of: dict[int, list[tuple[float, int]]] = {rows: [] for rows in sizes}
    for _ in range(args.turns):
        for rows, engine in engines.items():
            steps_of[rows] += measured(engine)
    print(f"# {args.shape}, {args.quantization}, {kernels.name} kernels, {args.clients} clients, {args.turns} turns")
    base = median(ms for ms, _ in steps_of[sizes[-1]])
    for rows, steps in steps_of.items():
        times, faults = [ms for ms, _ in steps], median(faults for _, faults in steps)
        ratio = f"{median(times) / base:.2f} of the last"
        print(
            f"{rows:4} rows: median {median(times):.2f} ms, least {min(times):.2f}, {ratio}, {faults:.0f} page faults"
        )


if __name__ == "__main__":
    main()
