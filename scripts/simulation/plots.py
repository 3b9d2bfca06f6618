"""A setting's curves as one picture: a row for each load."""

from pathlib import Path

import matplotlib as mpl

from scripts.simulation.merits import SLAS, Curves

mpl.use("Agg")
from matplotlib import pyplot as plt

STYLES = {"SplitFuse": "o-", "prompt-first": "s--", "static": "^:"}


def plot_setting(title: str, curves: Curves, path: Path) -> None:
    """Write a PNG: latency over throughput, then effective throughput over clients at each SLA."""
    figure, rows = plt.subplots(
        len(curves.loads), 1 + len(SLAS), figsize=(15, 3.6 * len(curves.loads)), layout="constrained", squeeze=False
    )
    for (latency, *effective), (prompt, output) in zip(rows, curves.loads, strict=True):
        latency.set(title=f"{prompt} + {output} tokens", xlabel="requests/s", ylabel="mean latency, s")
        for axes, sla in zip(effective, SLAS, strict=True):
            axes.set(title=f"SLA {sla} tokens/s", xlabel="clients", ylabel="effective requests/s")
        for policy, style in STYLES.items():
            points = curves.of(policy, (prompt, output))
            latency.plot(
                [p["requests_per_s"] for p in points], [p["latency_mean"] for p in points], style, label=policy
            )
            for axes, sla in zip(effective, SLAS, strict=True):
                kept = [p["effective"][sla]["requests_per_s"] for p in points]
                axes.plot([p["clients"] for p in points], kept, style, label=policy)
        for axes in (latency, *effective):
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
        latency.legend(fontsize="small")
    figure.suptitle(title)
    figure.savefig(path, dpi=64, metadata={"Software": None})
    plt.close(figure)
