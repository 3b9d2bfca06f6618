"""Time how long a context that left the device takes to come back: copied, computed again, or both as planned.

With ``--inputs`` layer inputs are kept too: also all projected from these, and as planned without them.

One context of random tokens is computed, pushed out by others, and asked for again under each policy in turn, over
simulated links (every byte is copied, then held back until the link would have carried it; the planner sees only what
copies took). Prints a line of JSON for each bandwidth: medians of seconds from the request to its first token, and what
the planner predicted for its own plan, less the steps of the rest of the prompt.

    .venv/bin/python scripts/restore_time.py --bandwidths 10,20,40,80,0 --tokens 4096 --repeats 5   (MB/s; 0: real)
"""

import argparse
import json
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from jaxgen.config import CacheConfig, EngineConfig, LlamaConfig, OffloadConfig, OffloadPolicy, SchedulerConfig
from jaxgen.engine import Engine
from jaxgen.models import init_params
from jaxgen.offload.build import make_planner
from jaxgen.offload.tier import Planner, Split
from jaxgen.request import Request, SamplingParams
from scripts.step_time import BLOCK_SIZE, SHAPES, kernels_for

POLICIES: tuple[OffloadPolicy, ...] = ("transfer", "recompute", "plan")


def build(model: LlamaConfig, tokens: int, budget: int, *, inputs: bool) -> Engine:
    """An engine whose cache holds one context and a little more, and whose host memory holds several."""
    blocks = -(-tokens // BLOCK_SIZE) + 4
    config = EngineConfig(
        CacheConfig(BLOCK_SIZE, blocks, inputs),
        SchedulerConfig(budget, 1, tokens + BLOCK_SIZE),
        seed=0,
        max_logit_bias=4,
        offload=OffloadConfig(8 * blocks),
    )
    from jaxgen.programs import compile_step

    kernels = kernels_for("chosen", model)
    compiled = compile_step(model, config, kernels)
    return Engine(model, config, dict(init_params(model, 0)), frozenset(), compiled=compiled)


def first_token(engine: Engine, name: str, prompt: tuple[int, ...]) -> float:
    """Seconds from a request to its only token."""
    started = time.perf_counter()
    engine.add(Request(name, prompt, SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)))
    while not engine.step():
        pass
    return time.perf_counter() - started


def settle(engine: Engine) -> None:
    """Until everything that leaves the device is on the host."""
    while engine.has_work:
        engine.step()


class Measurement:
    """One context, and others that push it out."""

    def __init__(self, engine: Engine, tokens: int):
        self.engine = engine
        self.rng = random.Random(0)
        self.count = 0
        self.context = self.prompt(tokens)
        self.filler = self.prompt(tokens - BLOCK_SIZE)
        self.run(self.context)
        self.run(self.filler)

    def prompt(self, tokens: int) -> tuple[int, ...]:
        return tuple(self.rng.choices(range(1, 500), k=tokens))

    def run(self, prompt: tuple[int, ...]) -> float:
        self.count += 1
        seconds = first_token(self.engine, str(self.count), prompt)
        settle(self.engine)
        return seconds

    def planners(self) -> dict[str, Planner]:
        """The ways to compare."""
        offload, config = self.engine.offload, self.engine.config
        assert offload is not None
        assert config.offload is not None
        made: dict[str, Planner] = {}
        for policy in POLICIES:
            by_policy = replace(config, offload=replace(config.offload, policy=policy))
            made[policy] = make_planner(self.engine.model, by_policy, offload.meter)
        if config.cache.keep_inputs:
            plan = made["plan"]
            made["project"] = lambda blocks, *_: Split(0, 0.0, blocks)
            made["plan without inputs"] = lambda blocks, start, free, waiting, _: plan(
                blocks, start, free, waiting, False
            )
        return made

    def restore(self, planner: Planner) -> tuple[float, Split]:
        """Seconds to the first token, and what was planned."""
        offload = self.engine.offload
        assert offload is not None
        splits: list[Split] = []

        def noting(*question: Any) -> Split:
            splits.append(planner(*question))
            return splits[-1]

        offload.tier.planner = noting
        seconds = self.run(self.context)
        offload.tier.planner = planner
        self.run(self.filler)
        return seconds, splits[0]


def measure(measurement: Measurement, bandwidth: float, repeats: int) -> dict[str, object]:
    """At ``bandwidth`` bytes per second; 0: what the machine has."""
    offload = measurement.engine.offload
    assert offload is not None
    offload.mover.simulate(bandwidth or None)
    offload.mover.measure()
    planners = measurement.planners()
    seconds: dict[str, list[float]] = {name: [] for name in planners}
    plans: list[Split] = []
    for _ in range(repeats):
        for name, planner in planners.items():
            took, split = measurement.restore(planner)
            seconds[name].append(took)
            if name == "plan":
                plans.append(split)
    medians = {name: round(median(values), 4) for name, values in seconds.items()}
    return {
        "megabytes_per_second": bandwidth / 1e6 or None,
        "measured_megabytes_per_second": round(offload.meter.restore.bytes_per_second / 1e6, 1),
        **medians,
        "predicted": round(median(plan.seconds for plan in plans), 4),
        "computed_tokens": plans[-1].recompute * BLOCK_SIZE,
        "projected_tokens": plans[-1].project * BLOCK_SIZE,
        "tokens": len(measurement.context),
        "gain": round(min(medians["transfer"], medians["recompute"]) / medians["plan"], 3),
    }


def main() -> None:
    """Print a line of JSON for each bandwidth."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--shape", choices=sorted(SHAPES), default="88m")
    parser.add_argument("--bandwidths", default="10,20,40,80,0", help="MB/s of the simulated links; 0: the real one")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--token-budget", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--inputs", action="store_true", help="keep layer inputs too")
    args = parser.parse_args()
    engine = build(SHAPES[args.shape], args.tokens, args.token_budget, inputs=args.inputs)
    measurement = Measurement(engine, args.tokens)
    for bandwidth in (float(word) * 1e6 for word in args.bandwidths.split(",")):
        print(json.dumps(measure(measurement, bandwidth, args.repeats)), flush=True)


if __name__ == "__main__":
    main()
