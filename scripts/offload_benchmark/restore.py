"""How long a context that left the device takes to come back: copied, computed again, or both as planned.

One context of random tokens is computed, pushed out by another, and asked for again under each policy in turn.
"""

import copy
import random
import time
from dataclasses import replace
from statistics import median
from typing import Any

from jaxgen.config import CacheConfig, EngineConfig, ModelConfig, OffloadConfig, OffloadPolicy, SchedulerConfig
from jaxgen.engine import Engine
from jaxgen.kernels import Kernels
from jaxgen.memory_plan import block_bytes
from jaxgen.models import init_params
from jaxgen.offload.build import Offload, make_planner
from jaxgen.offload.planner import ContextCost, RestorePlan, plan_restore
from jaxgen.offload.tier import Split
from jaxgen.programs import compile_step
from jaxgen.request import Request, SamplingParams

BLOCK_SIZE = 64
SPEEDS = (1.0, 2.0, 4.0)
"""Of scaled links, beside the one that transfers a context in the time that computing it takes."""
HALVED_RESTORES = 6
POLICIES: tuple[OffloadPolicy, ...] = ("transfer", "recompute", "plan")


def build(model: ModelConfig, kernels: Kernels, tokens: int, budget: int) -> Engine:
    """An engine whose cache holds one context and a little more, and whose host memory holds several."""
    blocks = -(-tokens // BLOCK_SIZE) + 4
    config = EngineConfig(
        CacheConfig(BLOCK_SIZE, blocks),
        SchedulerConfig(budget, 1, tokens + BLOCK_SIZE),
        seed=0,
        max_logit_bias=4,
        offload=OffloadConfig(4 * blocks),
    )
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
    """One context, and another that pushes it out."""

    def __init__(self, engine: Engine, tokens: int):
        assert engine.offload is not None
        self.engine = engine
        self.offload: Offload = engine.offload
        self.token_bytes = block_bytes(engine.model, BLOCK_SIZE) / BLOCK_SIZE
        self.rng = random.Random(0)
        self.count = 0
        self.context = self.prompt(tokens)
        self.filler = self.prompt(tokens - BLOCK_SIZE)
        self.link: float | None = None
        self.computed_seconds = self.run(self.context)
        self.push_out()

    @property
    def balanced_link(self) -> float:
        """Bytes a second that would transfer the context in the time that computing it took."""
        return len(self.context) * self.token_bytes / self.computed_seconds

    def prompt(self, tokens: int) -> tuple[int, ...]:
        return tuple(self.rng.choices(range(1, 500), k=tokens))

    def run(self, prompt: tuple[int, ...]) -> float:
        self.count += 1
        seconds = first_token(self.engine, str(self.count), prompt)
        settle(self.engine)
        return seconds

    def simulate(self, bytes_per_second: float | None) -> None:
        """The link from now on; what is known of it stays."""
        self.link = bytes_per_second
        self.offload.mover.simulate(bytes_per_second)

    def push_out(self) -> None:
        """Fill the cache with the other context, over the real link. What the engine knows of the link stays."""
        offload, config = self.offload, self.engine.config
        assert config.offload is not None
        known = copy.deepcopy(offload.meter.restore)
        offload.mover.simulate(None)
        offload.tier.planner = make_planner(
            replace(config.offload, policy="transfer"), self.token_bytes, BLOCK_SIZE, offload.meter
        )
        self.run(self.filler)
        offload.mover.simulate(self.link)
        offload.meter.restore = known

    def restore(self, policy: OffloadPolicy) -> tuple[float, float, int]:
        """Seconds to the first token, seconds predicted before, and tokens that were planned to be computed."""
        config, tier = self.engine.config, self.offload.tier
        assert config.offload is not None
        planner = make_planner(replace(config.offload, policy=policy), self.token_bytes, BLOCK_SIZE, self.offload.meter)
        predicted = [0.0]

        def noting(blocks: int, start: int, free_tokens: int, num_waiting: int) -> Split:
            predicted[0] = self._predicted(policy, blocks, start, free_tokens)
            return planner(blocks, start, free_tokens, num_waiting)

        tier.planner = noting
        before = tier.counters.planned_recompute_tokens
        seconds = self.run(self.context)
        computed = tier.counters.planned_recompute_tokens - before
        self.push_out()
        return seconds, predicted[0], computed

    def _predicted(self, policy: OffloadPolicy, blocks: int, start: int, free_tokens: int) -> float:
        """Until the first token: the context, and the step of the rest of the prompt."""
        rates = self.offload.meter.rates()
        assert rates is not None, "steps and copies were timed"
        tokens, cost = blocks * BLOCK_SIZE, ContextCost(self.token_bytes, 0.0, 0.0)

        def plan(tokens: int, start: int) -> RestorePlan:
            return plan_restore(
                tokens,
                start=start,
                block_size=BLOCK_SIZE,
                cost=cost,
                rates=rates,
                free_tokens=free_tokens,
                x_stored=False,
            )

        found, rest = plan(tokens, start), len(self.context) - start - tokens
        seconds = {"transfer": found.transfer_seconds, "recompute": found.recompute_seconds, "plan": found.seconds}
        steps = -(-rest // free_tokens)
        attended = rest * (start + tokens + rest / 2)
        return seconds[policy] + steps * rates.step_seconds + rates.seconds_per_position * attended


def measure(measurement: Measurement, bandwidth: float | None, repeats: int) -> dict[str, Any]:
    """At ``bandwidth`` bytes per second; None: what the machine has. Times are medians, in seconds."""
    offload = measurement.offload
    measurement.simulate(bandwidth)
    offload.mover.measure()
    seconds: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    predicted: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    computed = 0
    for _ in range(repeats):
        for policy in POLICIES:
            took, expected, tokens = measurement.restore(policy)
            seconds[policy].append(took)
            predicted[policy].append(expected)
            if policy == "plan":
                computed = tokens
    medians = {policy: median(values) for policy, values in seconds.items()}
    return {
        "link": bandwidth,
        "measured_link": offload.meter.restore.bytes_per_second,
        "tokens": len(measurement.context),
        "computed_tokens": computed,
        "seconds": medians,
        "predicted_seconds": {policy: median(values) for policy, values in predicted.items()},
        "prediction_errors": {policy: median(map(_error, predicted[policy], seconds[policy])) for policy in POLICIES},
        "gain": min(medians["transfer"], medians["recompute"]) / medians["plan"],
    }


def halved(measurement: Measurement) -> dict[str, Any]:
    """The error of each transfer's prediction after the fastest of the scaled links carries half of what it did."""
    link = max(SPEEDS) * measurement.balanced_link
    measurement.simulate(link)
    measurement.offload.mover.measure()
    measurement.simulate(link / 2)
    found = [measurement.restore("transfer") for _ in range(HALVED_RESTORES)]
    return {"link": link, "halved_errors": [_error(predicted, seconds) for seconds, predicted, _ in found]}


def restore_links(*, scaled: bool) -> tuple[float | None, ...]:
    """Bytes a second, None the machine's own; scaled ones as parts of the balanced link."""
    return SPEEDS if scaled else (4e9, 16e9, None)


def _error(predicted: float, seconds: float) -> float:
    return abs(predicted - seconds) / seconds
