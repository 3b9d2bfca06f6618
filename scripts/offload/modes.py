"""Every mode against the others, in turn, and the predictions against the clock."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

from jaxgen.layerwise.planning.rates import Split, StreamRates, transfer_all
from scripts.offload.bench import Bench, Mode
from scripts.offload.generation import Generation

Modes = dict[str, Mode]
Results = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """``run`` decodes; ``predicted`` gives the seconds of a step by the tokens that it streams, and projects, a
    batch."""

    run: Callable[[Mode], Generation]
    predicted: Callable[[Mode, int, int], float]
    step_tokens: int
    """Tokens that a step decodes."""


def of_bench(bench: Bench, rates: StreamRates, prompt: int, length: int, batch: int) -> Measured:
    return Measured(
        lambda mode: bench.run(mode, prompt, length, batch),
        lambda mode, tokens, project: bench.predicted(rates, mode, tokens, project),
        batch,
    )


def modes_of(bench: Bench, rates: StreamRates) -> Modes:
    """All four; a fixed split is half of the context in whole copies."""
    return {
        "full": Mode(transfer_all, overlap=False),
        "overlapped": Mode(transfer_all),
        "fixed": Mode(half_of(bench.chunk)),
        "planned": Mode(cache(lambda tokens: rates.plan(tokens, bench.cost, bench.chunk).project)),
    }


def half_of(chunk: int) -> Split:
    """A fixed split: half of the context, in whole copies."""
    return lambda tokens: tokens // 2 // chunk * chunk


def only(modes: Modes, *names: str) -> Modes:
    return {name: modes[name] for name in names}


def compare(measured: Measured, modes: Modes, repeats: int, base: str = "overlapped") -> Results:
    """Every mode ``repeats`` times, one after another. Times are medians; ``ratios`` are of runs next to each other,
    planned over ``base``. ``tokens``: of ``base``'s first run."""
    runs: dict[str, list[Generation]] = {mode: [] for mode in modes}
    for repeat in range(repeats):
        order = list(modes)
        for name in order[repeat % len(order) :] + order[: repeat % len(order)]:
            runs[name].append(measured.run(modes[name]))
    totals = {name: [sum(run.seconds) for run in found] for name, found in runs.items()}
    steps = len(runs[base][0].seconds)
    tokens, project = runs["planned"][-1].streamed[-1]
    seconds = {name: median(times) for name, times in totals.items()}
    predicted = {name: _predicted(measured, modes[name], found[-1]) for name, found in runs.items()}
    return {
        "steps": steps,
        "split": project / max(tokens, 1),
        "seconds": seconds,
        "fastest": {name: min(times) for name, times in totals.items()},
        "tokens_per_second": {name: measured.step_tokens * steps / of_mode for name, of_mode in seconds.items()},
        "idle_share": {
            name: median(run.idle_seconds / sum(run.seconds) for run in found) for name, found in runs.items()
        },
        "ratios": [ours / theirs for ours, theirs in zip(totals["planned"], totals[base], strict=True)],
        "predicted_seconds": {name: sum(of_steps) for name, of_steps in predicted.items()},
        "prediction_errors": {name: _errors(measured, modes[name], found) for name, found in runs.items()},
        "tokens_equal": all(run.tokens == runs[base][0].tokens for found in runs.values() for run in found),
        "tokens": runs[base][0].tokens,
    }


def _predicted(measured: Measured, mode: Mode, run: Generation) -> list[float]:
    """Of each step."""
    return [measured.predicted(mode, tokens, project) for tokens, project in run.streamed]


def _errors(measured: Measured, mode: Mode, runs: list[Generation]) -> float:
    """The median, over steps, of how far the predicted time is from the measured one, as a part of that."""
    return median(
        abs(predicted - seconds) / seconds
        for run in runs
        for seconds, predicted in zip(run.seconds, _predicted(measured, mode, run), strict=True)
    )
