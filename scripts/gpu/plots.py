"""Plot a device's results: step times against their floor, and attention's share of its floor."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

from scripts.gpu.cells import Result, state
from scripts.gpu.sizes import FULL, StepLoad
from scripts.gpu.tables import DECODE_GOAL, PROMPT_GOAL, STEPS

mpl.use("Agg")
from matplotlib import pyplot as plt


def plot_steps(result: Result, path: Path) -> bool:
    """Plot tokens/s by token budget, measured and by the floor. Return False if there is no result."""
    measured = {name: _points(result, load) for name, load in STEPS.items()}
    if not any(measured.values()):
        return False
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for name, points in measured.items():
        (line,) = axes.plot(*_columns([(n, n / row["seconds"]) for n, row in points]), "o-", label=name)
        bound = [(n, n / row["floor_seconds"]) for n, row in points if row["floor_seconds"]]
        axes.plot(*_columns(bound), ":", color=line.get_color(), label=f"{name}, floor")
    axes.set(xscale="log", yscale="log", xlabel="token budget", ylabel="tokens/s", title=result.about["device"])
    axes.xaxis.set_major_locator(mpl.ticker.FixedLocator(sorted(FULL.steps.budgets)))
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
    return True


def plot_attention(result: Result, path: Path) -> bool:
    """Plot the share of the floor that each kind of attention reaches, by load, and the goal. Return False if no result
    exists."""
    ways = {"jaxgen": "", "cuDNN": "cudnn_", "PyTorch": "torch_sdpa_", "XLA, gathered": "xla_gathered_"}
    loads = FULL.attention
    found = {way: [result.row(prefix + load.name).get("fraction") for load in loads] for way, prefix in ways.items()}
    if not any(fraction is not None for fractions in found.values() for fraction in fractions):
        return False
    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    width = 0.8 / len(ways)
    for place, (way, fractions) in enumerate(found.items()):
        at = [index + (place - (len(ways) - 1) / 2) * width for index in range(len(loads))]
        axes.bar(at, [fraction or 0.0 for fraction in fractions], width, label=way)
    for index, load in enumerate(loads):
        goal = DECODE_GOAL if load.rows[0][0] == 1 else PROMPT_GOAL
        axes.hlines(goal, index - 0.45, index + 0.45, "black", "dashed", label="" if index else "goal")
    axes.set_xticks(range(len(loads)), [load.name.replace("_attention_", "\n") for load in loads])
    axes.set(ylabel="of what the ceilings allow", ylim=(0, None), title=result.about["device"])
    axes.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside right upper")
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
    return True


def _columns(points: list[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _points(result: Result, load: StepLoad) -> list[tuple[int, dict[str, Any]]]:
    rows = ((budget, result.row(f"step_{load.name}_{budget}")) for budget in sorted(load.budgets))
    return [(budget, row) for budget, row in rows if state(row) is None]
