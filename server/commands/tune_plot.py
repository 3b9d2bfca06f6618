"""Draw the plot of ``jaxgen tune``. Imported, with matplotlib, only for ``--plot``."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from jaxgen.sizing.token_budget import power


def plot_tuning(record: dict[str, Any], name: str, path: Path) -> None:
    """Write a PNG: step time, and throughput with power, over the token budget. The chosen budget is marked."""
    budgets = [found["token_budget"] for found in record["times"]]
    seconds = [found["seconds"] for found in record["times"]]
    rates = [budget / time for budget, time in zip(budgets, seconds, strict=True)]
    powers = list(power(dict(zip(budgets, seconds, strict=True))).values())
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(budgets, [1e3 * time for time in seconds], "o-")
    for found in record["times"]:
        left.plot([found["token_budget"]] * len(found["blocks"]), [1e3 * b for b in found["blocks"]], "k.", alpha=0.4)
    left.set(xlabel="token budget", ylabel="step time, ms", title="A full step (dots: blocks of steps)")
    right.plot(
        budgets, [rate / max(rates) for rate in rates], "o-", label=f"throughput (1 is {max(rates):.0f} tokens/s)"
    )
    right.plot(budgets, [p / max(powers) for p in powers], "s--", label="power: throughput / step time")
    right.set(xlabel="token budget", ylabel="share of the largest", title="Throughput and power")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(budgets, [str(budget) for budget in budgets])
        axes.set_ylim(bottom=0)
        axes.axvline(record["token_budget"], color="grey", linestyle=":", label="chosen")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.suptitle(f"{name}: {record['token_budget']} tokens a step were chosen")
    figure.savefig(path, dpi=120, format="png")
