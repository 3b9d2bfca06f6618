"""How long a context that left the device takes to come back: copied, computed again, or both as planned.

One context of random tokens is computed, pushed out by another, and asked for again under each policy in turn.
"""

import copy
import random
import time
from dataclasses import replace
from statistics import median
from typing import Any

from jaxgen.cache.cache_format import CacheFormat
from jaxgen.core.config import CacheConfig, EngineConfig, OffloadConfig, OffloadPolicy, SchedulerConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.engine.engine import Engine
from jaxgen.engine.start.build import build_engine
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.model import PackedParams, init_params
from jaxgen.offload.build import Offload, context_cost, make_planner
from jaxgen.offload.planning.restore_plan import Rates
from jaxgen.offload.tiers.offload_tier import Planner, Split
from jaxgen.runner.programs import compile_step
from scripts.offload.slow_links import simulate

BLOCK_SIZE = 64
SPEEDS = (1.0, 2.0, 4.0)
"""Scales of links; one more link transfers a context in the time of computing it."""
HALVED_RESTORES = 6
POLICIES: tuple[OffloadPolicy, ...] = ("transfer", "recompute", "plan")


def build(
    model: ModelConfig,
    kernels: Kernels,
    tokens: int,
    budget: int,
    params: PackedParams | None = None,
) -> Engine:
    """An engine whose cache holds one context and a little more, and whose host memory holds several. ``params`` None:
    random ones."""
    blocks = -(-tokens // BLOCK_SIZE) + 4
    config = EngineConfig(
        CacheConfig(BLOCK_SIZE, blocks),
        SchedulerConfig(budget, 1, tokens + BLOCK_SIZE),
        seed=0,
        max_logit_bias=4,
        offload=OffloadConfig(4 * blocks),
    )
    compiled = compile_step(model, config, kernels)
    params = dict(init_params(model, 0)) if params is None else params
    return build_engine(model, config, params, frozenset(), compiled=compiled)


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
        assert isinstance(engine.offload, Offload)
        self.engine = engine
        self.offload: Offload = engine.offload
        self.token_bytes = CacheFormat.of(engine.model, BLOCK_SIZE).kv_bytes
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

    def use_link(self, bytes_per_second: float | None) -> None:
        """The link from now on; what is known of it stays."""
        self.link = bytes_per_second
        simulate(self.offload.transfer, bytes_per_second)

    def push_out(self) -> None:
        """Fill the cache with the other context, over the real link. What the engine knows of the link stays."""
        offload = self.offload
        known = copy.deepcopy(offload.meter.restore)
        simulate(offload.transfer, None)
        offload.tier.planner = self.planners()["transfer"]
        self.run(self.filler)
        simulate(offload.transfer, self.link)
        offload.meter.restore = known

    def planners(self) -> dict[str, Planner]:
        """The ways to compare."""
        model, config, meter = self.engine.model, self.engine.config, self.offload.meter
        assert config.offload is not None
        result: dict[str, Planner] = {}
        for policy in POLICIES:
            result[policy] = make_planner(model, replace(config, offload=replace(config.offload, policy=policy)), meter)
        return result

    def restore(self, way: str) -> tuple[float, float, Split]:
        """Seconds to the first token, seconds predicted before, and what was planned."""
        tier, planner = self.offload.tier, self.planners()[way]
        noted = [(Split(0, 0.0), 0.0)]  # of a context that has not left the device

        def noting(blocks: int, start: int, free_tokens: int, num_waiting: int, inputs_known: bool) -> Split:
            split = planner(blocks, start, free_tokens, num_waiting, inputs_known)
            noted.append((split, self._predicted(split, blocks, start, free_tokens)))
            return split

        tier.planner = noting
        seconds = self.run(self.context)
        self.push_out()
        split, predicted = noted[-1]
        return seconds, predicted, split

    def _predicted(self, split: Split, blocks: int, start: int, free_tokens: int) -> float:
        """Until the first token: the context, and the step of the rest of the prompt."""
        model, config = self.engine.model, self.engine.config
        cost = context_cost(model, config)
        rates = self.offload.meter.rates(cost.projection_flops)
        assert rates is not None, "steps and copies were timed"
        seconds = split.seconds
        if split.recompute == blocks:
            seconds = self._compute_seconds(rates, start, blocks * BLOCK_SIZE, free_tokens)
        behind = start + blocks * BLOCK_SIZE
        rest = len(self.context) - behind
        steps = -(-rest // free_tokens)
        return seconds + steps * rates.step_seconds + rates.seconds_per_position * rest * (behind + rest / 2)

    def _compute_seconds(self, rates: Rates, start: int, tokens: int, free_tokens: int) -> float:
        """Seconds of the given tokens from ``start`` on, by ordinary chunks."""
        attended = tokens * (start + tokens / 2)
        return tokens * rates.step_seconds / free_tokens + rates.seconds_per_position * attended


def measure(measurement: Measurement, bandwidth: float | None, repeats: int) -> dict[str, Any]:
    """At ``bandwidth`` bytes per second; None: what the machine has. Times are medians, in seconds."""
    offload = measurement.offload
    measurement.use_link(bandwidth)
    offload.transfer.measure()
    ways = tuple(measurement.planners())
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    predicted: dict[str, list[float]] = {way: [] for way in ways}
    planned = Split(0, 0.0)
    for _ in range(repeats):
        for way in ways:
            took, expected, split = measurement.restore(way)
            seconds[way].append(took)
            predicted[way].append(expected)
            if way == "plan":
                planned = split
    medians = {way: median(values) for way, values in seconds.items()}
    return {
        "link": bandwidth,
        "measured_link": offload.meter.restore.bytes_per_second,
        "tokens": len(measurement.context),
        "computed_tokens": planned.recompute * BLOCK_SIZE,
        "seconds": medians,
        "predicted_seconds": {way: median(values) for way, values in predicted.items()},
        "prediction_errors": {way: median(map(_error, predicted[way], seconds[way])) for way in ways},
        "gain": min(medians["transfer"], medians["recompute"]) / medians["plan"],
    }


def halved(measurement: Measurement) -> dict[str, Any]:
    """The error of each transfer's prediction after the fastest of the scaled links carries half of what it did."""
    link = max(SPEEDS) * measurement.balanced_link
    measurement.use_link(link)
    measurement.offload.transfer.measure()
    measurement.use_link(link / 2)
    restores = [measurement.restore("transfer") for _ in range(HALVED_RESTORES)]
    return {"link": link, "halved_errors": [_error(predicted, seconds) for seconds, predicted, _ in restores]}


def restore_links(*, scaled: bool) -> tuple[float | None, ...]:
    """Bytes a second, None the machine's own; scaled ones as parts of the balanced link."""
    return SPEEDS if scaled else (4e9, 16e9, None)


def _error(predicted: float, seconds: float) -> float:
    return abs(predicted - seconds) / seconds
