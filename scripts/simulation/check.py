"""The simulator against live runs: costs fitted to one load predict others."""

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import batched, count, groupby
from os import getloadavg
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

from jaxgen.core.model_config import DType
from jaxgen.core.step_plan import StepPlan
from jaxgen.runner.model_runner import device_info
from jaxgen.scheduling.cost_model import StepSample, fit
from jaxgen.server.benchmark.metrics import percentile
from scripts.simulation.live import LiveRun, MeasuredEngine, MeasuredStep, measured_engine
from scripts.simulation.load import Load, Waves, closed_loop, normal_requests, open_loop
from scripts.simulation.loop import Simulation, StepSeconds
from scripts.simulation.policies import SplitFuse
from scripts.simulation.record import Recorder

SEED = 42
TOGETHER = 8
"""Steps of which a fit sees the mean."""
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class CheckedLoad:
    """Requests with Normal lengths about these means: of ``clients`` in a closed loop, or, where that is 0, coming by
    chance, ``rate`` times as many a second as were answered of the fitted load."""

    name: str
    prompt: int
    output: int
    requests: int
    clients: int = 0
    rate: float = 0.0

    def make(self, fitted_rate: float) -> Load:
        """``fitted_rate``: requests a second."""
        requests = normal_requests(self.prompt, self.output, self.requests, SEED)
        if self.clients:
            return closed_loop(requests, self.clients, SEED)
        return open_loop(requests, self.rate * fitted_rate, SEED)


WAVES = (1, 2, 4, 8, 16, 16, 8, 4, 2, 1)
"""Requests of the fitted load, 400 + 50 tokens on average: they make steps of all kinds."""
PREDICTED = (
    CheckedLoad("1 client, 256 + 60", 256, 60, 30, clients=1),
    CheckedLoad("4 clients, 256 + 60", 256, 60, 60, clients=4),
    CheckedLoad("16 clients, 256 + 60", 256, 60, 100, clients=16),
    CheckedLoad("4 clients, 800 + 30", 800, 30, 40, clients=4),
    CheckedLoad("8 clients, 64 + 100", 64, 100, 60, clients=8),
    CheckedLoad("open loop, 256 + 60", 256, 60, 60, rate=1.0),
)


def fitted_load() -> Load:
    requests = iter(normal_requests(400, 50, sum(WAVES), SEED + 1))
    return Waves([[next(requests) for _ in range(size)] for size in WAVES])


FIGURES = {
    "requests_per_s": "requests/s",
    "output_tokens_per_s": "output tokens/s",
    "ttft_p50": "TTFT P50, ms",
    "inter_token_p50": "inter-token P50, ms",
    "inter_token_p95": "inter-token P95, ms",
}
"""Figures that are compared, and their names on a page."""
WITHIN = 0.15
"""The largest error of a prediction that is good enough."""


class Program:
    """What a step of one program costs, fitted to steps of it; and how far these were off, as they came."""

    def __init__(self, samples: Sequence[StepSample]) -> None:
        self.cost = fit(_means(samples))
        self.ratios = [s.seconds / self.cost.seconds(s.tokens, s.positions, s.contexts) for s in samples]
        """Measured over fitted."""


def _means(samples: Sequence[StepSample]) -> list[StepSample]:
    """Mean over up to ``TOGETHER`` steps in a row of as many tokens.

    A host that was late to read one step finds the next one done. A time that is much too short would count for more
    than all others in a fit of relative errors.
    """
    return [
        StepSample(
            tokens,
            round(fmean(s.positions for s in some)),
            fmean(s.seconds for s in some),
            round(fmean(s.contexts for s in some)),
        )
        for tokens, alike in groupby(samples, key=lambda sample: sample.tokens)
        for some in batched(alike, TOGETHER)
    ]


class StepTimes:
    """Draws what steps take: the fitted cost, times the ratio of some step that was measured.

    So the mean and the spread of what was measured are kept, where a fit alone has the time of a step that nothing
    disturbs.
    """

    def __init__(self, steps: Sequence[MeasuredStep], seed: int) -> None:
        narrow = [step.sample for step in steps if step.narrow]
        self.programs = {"wide": Program([step.sample for step in steps if not step.narrow])}
        if narrow:
            self.programs["narrow"] = Program(narrow)
        self._random = random.Random(seed)

    def __call__(self, plan: StepPlan) -> float:
        program = self.programs["narrow" if plan.decodes_only and "narrow" in self.programs else "wide"]
        return program.cost.seconds(plan.num_tokens, plan.num_positions, plan.num_contexts) * self._random.choice(
            program.ratios
        )


def figures(recorder: Recorder) -> Figures:
    """Figures that are compared; seconds, or a second."""
    summary = recorder.summary()
    return {
        "requests_per_s": summary["requests_per_s"],
        "output_tokens_per_s": summary["output_tokens_per_s"],
        "ttft_p50": summary["ttft_s"]["p50"],
        "inter_token_p50": summary["inter_token_s"]["p50"],
        "inter_token_p95": summary["inter_token_s"]["p95"],
    }


@dataclass(frozen=True, slots=True)
class Pair:
    """The figures of a load in one round."""

    predicted: Figures
    measured: Figures


def predict(engine: MeasuredEngine, seconds: StepSeconds, load: Load) -> Figures:
    config = engine.engine.config
    policy = SplitFuse(config.scheduler, config.cache, narrow=engine.has_narrow, runs_ahead=config.run_ahead)
    return figures(Simulation(policy, seconds, load).run())


class Check:
    """Live runs of an engine: the fitted load before and after each of the others, which is predicted from the steps of
    these two, so that a machine whose speed changes is compared with itself."""

    def __init__(self, engine: MeasuredEngine) -> None:
        """Runs the fitted load, which warms up, and says at which rate others may come."""
        self._engine = engine
        self._runs = count()
        self._rate = self._run(fitted_load())["requests_per_s"]
        self.steps: list[MeasuredStep] = []
        """All of the fitted load."""

    def round(self, report: Callable[[str], None]) -> dict[str, Pair]:
        """By the names of the loads."""
        result = {}
        before = self._fitted_steps()
        for load in PREDICTED:
            measured = self._run(load.make(self._rate))
            after = self._fitted_steps()
            predicted = predict(self._engine, StepTimes(before + after, SEED), load.make(self._rate))
            result[load.name] = Pair(predicted, measured)
            before = after
            report(f"{load.name}: requests/s {predicted['requests_per_s']:.2f}, {measured['requests_per_s']:.2f}")
        return result

    def _fitted_steps(self) -> list[MeasuredStep]:
        self._engine.measured.clear()
        self._run(fitted_load())
        steps = list(self._engine.measured)
        self.steps += steps
        return steps

    def _run(self, load: Load) -> Figures:
        return figures(LiveRun(self._engine, load, next(self._runs)).run())


def run_check(
    model: str | None, dtype: DType | Literal["auto"], rounds: int, report: Callable[[str], None]
) -> dict[str, Any]:
    """Return the record of the given rounds. ``report`` gets a line as each load ends: predicted, then measured."""
    busy = [getloadavg()[0]]
    with measured_engine(model, dtype) as engine:
        check = Check(engine)
        by_round = []
        for _ in range(rounds):
            by_round.append(check.round(report))
            busy.append(getloadavg()[0])
    programs = StepTimes(check.steps, SEED).programs
    return {
        "model": "the embedded model" if model is None else Path(model).name,
        "dtype": engine.engine.model.dtype,
        "device": device_info().title,
        "date": datetime.now(UTC).date().isoformat(),
        "rounds": rounds,
        "load_average": busy,
        "scheduler": asdict(engine.engine.config.scheduler),
        "programs": {name: _about(program) for name, program in programs.items()},
        "loads": [_compared(load.name, [pairs[load.name] for pairs in by_round]) for load in PREDICTED],
    }


def _about(program: Program) -> dict[str, Any]:
    """``spread``: the least, the quartiles and the greatest but 5 % of measured over fitted."""
    ordered = sorted(program.ratios)
    return {
        "steps": len(ordered),
        "cost": asdict(program.cost),
        "spread": {f"p{q}": percentile(ordered, q) for q in (5, 25, 50, 75, 95)},
    }


def _compared(name: str, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Medians over the rounds, and of ``errors`` all: predicted over measured, less 1."""
    errors = {f: [pair.predicted[f] / pair.measured[f] - 1.0 for pair in pairs] for f in FIGURES}
    return {
        "load": name,
        "predicted": {figure: median(pair.predicted[figure] for pair in pairs) for figure in FIGURES},
        "measured": {figure: median(pair.measured[figure] for pair in pairs) for figure in FIGURES},
        "error": {figure: median(found) for figure, found in errors.items()},
        "errors": errors,
    }
