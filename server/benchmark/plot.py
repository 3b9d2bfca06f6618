"""Draw the plot of a run. It imports matplotlib, so it is itself imported only for ``--plot``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure


def plot_run(run: dict[str, Any], path: Path) -> None:
    """Write a PNG of one run (as in its JSON line): latency over throughput, and effective throughput over load.

    A point without the value (too many requests failed) is missing from that curve.
    """
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    modes = [(mode, [p for p in run["points"] if p["mode"] == mode]) for mode in ("closed", "open")]
    for (mode, points), mark in zip(modes, ("o", "^"), strict=True):
        if points:
            _plot_latency(left, mode, points, mark)
            _plot_effective(right, mode, points, mark)
    left.set(xlabel="throughput, completed requests/s", ylabel="end-to-end latency, s", title="Latency")
    right.set(
        xlabel="load: clients (closed loop) or requests/s (open loop)",
        ylabel="requests/s",
        title="Throughput and effective throughput",
    )
    for axes in (left, right):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    settings = run["settings"]
    figure.suptitle(
        f"{run['server']['model']}: prompts of {settings['prompt_mean']:g} and answers of {settings['output_mean']:g} "
        "tokens on average"
    )
    figure.savefig(path, dpi=120, format="png")


def _plot_latency(axes: Axes, mode: str, points: Sequence[dict[str, Any]], mark: str) -> None:
    for name, style in (("p50", "-"), ("p95", "--")):
        known = [p for p in points if p["requests_per_s"] is not None and p["e2e_s"][name] is not None]
        throughput = [point["requests_per_s"] for point in known]
        latency = [point["e2e_s"][name] for point in known]
        axes.plot(throughput, latency, mark + style, label=f"{name.upper()}, {mode} loop")
        for x, y, point in zip(throughput, latency, known, strict=True):
            axes.annotate(f"{point['load']:g}", (x, y), textcoords="offset points", xytext=(4, 4), fontsize="x-small")


def _plot_effective(axes: Axes, mode: str, points: Sequence[dict[str, Any]], mark: str) -> None:
    loads = [point["load"] for point in points]
    curves = {"all completed": ([point["requests_per_s"] for point in points], f"{mark}-")}
    for i, promised in enumerate(points[0]["effective"]):
        name = f"SLA {promised['sla_tokens_per_s']:g} tokens/s"
        curves[name] = ([point["effective"][i]["requests_per_s"] for point in points], f"{mark}--")
    for name, (values, style) in curves.items():
        known = [(load, value) for load, value in zip(loads, values, strict=True) if value is not None]
        axes.plot([load for load, _ in known], [value for _, value in known], style, label=f"{name}, {mode} loop")
