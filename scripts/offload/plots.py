"""A record as one picture, a panel for each part."""

from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes

from scripts.offload.results import Record

mpl.use("Agg")
from matplotlib import pyplot as plt

Row = dict[str, Any]
PREDICTED: dict[str, Any] = {"color": "black", "marker": "_", "s": 120, "zorder": 3}


def plot_record(record: Record, path: Path) -> None:
    """Write a PNG; a part that was not measured leaves its panel empty. Bars are measured, dashes predicted."""
    figure, axes = plt.subplots(2, 3, figsize=(15, 8), layout="constrained")
    latency, throughput, links, ablation, mha, gqa = axes.flat
    rows = record.rows("latency")
    labels = [f"{row['prompt']}+{row['generate']}" for row in rows]
    _bars(latency, rows, labels, "fastest", "predicted_seconds")
    latency.set(title="Latency", xlabel="prompt + steps", ylabel="seconds of decoding, fastest run")
    _throughput(throughput, record.rows("throughput"))
    _links(links, record.rows("links"))
    _ablation(ablation, record.rows("ablation"))
    for panel, name in ((mha, "MHA"), (gqa, "GQA")):
        _restore(panel, [row for row in record.rows("restore") if row["model"] == name], name)
    figure.suptitle(f"{record.model}, {record.device} (dashes: predicted)")
    figure.savefig(path, dpi=90, metadata={"Software": None})
    plt.close(figure)


def _bars(axes: Axes, rows: list[Row], labels: list[str], measured: str, predicted: str | None = None) -> None:
    """A group for each row, a bar for each mode."""
    modes = list(rows[0][measured]) if rows else []
    width = 0.8 / max(1, len(modes))
    for place, mode in enumerate(modes):
        at = [index + (place - (len(modes) - 1) / 2) * width for index in range(len(rows))]
        axes.bar(at, [row[measured][mode] for row in rows], width, label=mode)
        if predicted is not None:
            axes.scatter(at, [row[predicted][mode] for row in rows], **PREDICTED)
    axes.set_xticks(range(len(rows)), labels)
    axes.margins(y=0.3)  # room for the legend
    axes.grid(axis="y", alpha=0.3)
    if modes:
        axes.legend(fontsize="small")


def _throughput(axes: Axes, rows: list[Row]) -> None:
    _bars(axes, rows, [str(row["prompt"]) for row in rows], "tokens_per_second")
    axes.set(title="Throughput, in columns", xlabel="prompt", ylabel="tokens/s, median")


def _links(axes: Axes, rows: list[Row]) -> None:
    """Ratio and split against the speed of the paper's link; the machine's own has no place among those."""
    rows = [row for row in rows if row["papers_link"] is not None]
    speeds = [row["papers_link"] / 1e9 for row in rows]
    predicted = [row["predicted_seconds"]["planned"] / row["predicted_seconds"]["overlapped"] for row in rows]
    axes.plot(speeds, [median(row["ratios"]) for row in rows], "o-", label="planned / overlapped")
    fastest = [row["fastest"]["planned"] / row["fastest"]["overlapped"] for row in rows]
    axes.plot(speeds, fastest, "^-", label="of the fastest runs")
    axes.plot(speeds, predicted, "k:", label="predicted")
    axes.plot(speeds, [row["split"] for row in rows], "s--", label="part projected")
    if rows:
        axes.set_xscale("log")
        axes.set_xticks(speeds, [f"{speed:g}" for speed in speeds])
        axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
        axes.legend(fontsize="small")
    axes.set(title="Links", xlabel="the paper's link, GB/s", ylim=(0, None))
    axes.grid(alpha=0.3)


def _ablation(axes: Axes, rows: list[Row]) -> None:
    _bars(axes, rows, [f"batch {row['batch']}" for row in rows], "tokens_per_second")
    for row_index, row in enumerate(rows):
        modes = list(row["idle_share"])
        for place, mode in enumerate(modes):
            at = row_index + (place - (len(modes) - 1) / 2) * 0.8 / len(modes)
            note = f"{100 * row['idle_share'][mode]:.0f} %"
            axes.annotate(note, (at, row["tokens_per_second"][mode]), ha="center", va="bottom", fontsize="small")
    axes.set(title="Parts left out (above the bars: device idle)", ylabel="tokens/s, median")


def _restore(axes: Axes, rows: list[Row], name: str) -> None:
    timed = [row for row in rows if "seconds" in row]
    labels = ["own" if row["link"] is None else f"{row['link'] / 1e6:.0f}" for row in timed]
    _bars(axes, timed, labels, "seconds", "predicted_seconds")
    tokens = f", {timed[0]['tokens']:,} tokens" if timed else ""
    axes.set(title=f"A context that comes back{tokens}, {name}", xlabel="link, MB/s", ylabel="seconds to first token")
