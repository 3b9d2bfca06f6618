"""Where the time of a step goes: the costliest operations of the compiled program, by jax.profiler, under steady load.

    .venv/bin/python -m scripts.measure.step_profile --kernels chosen --clients 16
    .venv/bin/python -m scripts.measure.step_profile --kernels XLA --dtype float32 --top 20
    .venv/bin/python -m scripts.measure.step_profile --shape 1b --quantization int4 --clients 1

Times are summed over all threads that ran the operation (an operation that two threads share counts twice), and given
per step. Loops are left out, since what is in them is listed.
"""

import argparse
import gzip
import json
import random
import re
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from jaxgen.core.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.quantization import WeightFormat
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.engine.engine import Engine
from jaxgen.engine.start.build import build_engine
from jaxgen.models.model import PackedParams, init_params
from jaxgen.runner.programs import compile_step
from jaxgen.weights.encodings.quantize import quantized
from jaxgen.weights.encodings.weight_formats import quantized_config
from scripts.loads.shapes import SHAPES
from scripts.measure.step_time import kernels_for

PROMPT_TOKENS, ANSWER_TOKENS = 256, 60


def drive(engine: Engine, clients: int, requests: int, name: str) -> None:
    """A closed loop of ``clients``, until ``requests`` have been answered."""
    chance = random.Random(0)
    params = SamplingParams(max_tokens=ANSWER_TOKENS, temperature=0.0, ignore_eos=True)
    sent = ended = 0
    while ended < requests:
        while sent - ended < clients:
            prompt = tuple(chance.choices(range(3, 8000), k=PROMPT_TOKENS))
            engine.add(Request(f"{name}-{sent}", prompt, params))
            sent += 1
        ended += sum(event.finish_reason is not None for event in engine.step())


def profile(engine: Engine, clients: int) -> tuple[Counter[str], int]:
    """Microseconds by the program's own name of each operation, and the number of steps."""
    drive(engine, clients, 2, "warm-up")
    before = engine.stats().steps
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory):
            drive(engine, clients, clients + 1, "profiled")
        (path,) = Path(directory).rglob("*.trace.json.gz")
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    spent: Counter[str] = Counter()
    for event in events:
        if event.get("ph") == "X":
            spent[event["name"]] += event["dur"]
    return spent, engine.stats().steps - before


def operations(program: str) -> dict[str, str]:
    """Where each operation of an HLO text comes from, by its name; loops and what calls others left out."""
    result = {}
    for name, kind, rest in re.findall(r"^\s*(?:ROOT )?%?([\w.-]+) = [^=]*? ([\w-]+)\((.*)$", program, re.MULTILINE):
        if kind in ("while", "conditional", "call"):
            continue
        target = re.search(r'custom_call_target="([^"]*?)(?:_[0-9a-f]{8,})?"', rest)
        source = re.search(r'op_name="([^"]*)"', rest)
        where = source.group(1).removeprefix("jit(step)/") if source else ""
        result[name] = f"{target.group(1) if target else kind} {where}".strip()
    return result


def params_of(model: DecoderConfig) -> PackedParams:
    """Random weights, in the formats of the model."""
    params: PackedParams = dict(init_params(replace(model, weight_formats=()), seed=0))
    for path, form in model.weight_formats:
        assert isinstance(form, WeightFormat), "a quantization makes one format of a parameter"
        params[path] = quantized(jax.device_get(params[path]), form, path)
    return params


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="88m")
    parser.add_argument("--quantization", choices=("none", "int8", "int4"), default="none")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--kernels", choices=("XLA", "chosen"), default="chosen")
    parser.add_argument("--budget", type=int, default=64)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--top", type=int, default=10)
    args = parser.parse_args()
    model = quantized_config(replace(SHAPES[args.shape], dtype=args.dtype), args.quantization)
    kernels = kernels_for(args.kernels, model)
    scheduler = SchedulerConfig(args.budget, min(16, args.budget), 2048)
    config = EngineConfig(
        CacheConfig(64, 256, num_snapshots=0 if model.states else None), scheduler, seed=0, max_logit_bias=16
    )
    compiled = compile_step(model, config, kernels)
    engine = build_engine(model, config, params_of(model), frozenset(), compiled=compiled)
    spent, steps = profile(engine, args.clients)
    program: Any = compiled.run
    known = operations(program.as_text())
    costs = Counter({name: time for name, time in spent.items() if name in known})
    total = sum(costs.values())
    weights = args.dtype if args.quantization == "none" else args.quantization
    load = f"budget {args.budget}, {args.clients} clients, {steps} steps"
    print(f"# {args.shape}, {weights}, {kernels.name} kernels, {load}")
    print(f"{total / steps / 1e3:8.2f} ms a step in all operations")
    for name, time in costs.most_common(args.top):
        print(f"{time / steps / 1e3:8.2f} ms {100 * time / total:5.1f} %  {name}: {known[name]}")


if __name__ == "__main__":
    main()
