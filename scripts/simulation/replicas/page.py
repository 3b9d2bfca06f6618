"""The page docs/scale.md and its plot, from docs/results/replicas.json."""

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

from scripts.scaling.page import LIVE, live_parts
from scripts.simulation.replicas.study import RESULTS, Point
from scripts.simulation.replicas.texts import ABOUT, INTRO, NOT_HERE
from scripts.tables import percent, table

mpl.use("Agg")
from matplotlib import pyplot as plt

PAGE, PICTURE = "scale.md", "replicas.png"
PANELS = {"efficiency": "requests/s : those of one replica each", "ttft_p95": "TTFT P95, s"}


def write_scale_page(docs: Path) -> None:
    """Write the page, and the plot beside it."""
    found = json.loads((docs / "results" / RESULTS).read_text())
    _plot(found["loads"], docs / PICTURE)
    write_page(docs)


def write_page(docs: Path) -> None:
    """Write the page alone."""
    simulated, live = ((docs / "results" / name) for name in (RESULTS, LIVE))
    (docs / PAGE).write_text(
        page(*(json.loads(path.read_text()) if path.exists() else {} for path in (simulated, live)))
    )


def page(found: dict[str, Any], live: dict[str, Any]) -> str:
    parts = [INTRO, f"![simulated: efficiency and first tokens]({PICTURE})"]
    for name, load in found["loads"].items():
        parts += [f"## Simulated: {load['title']}", ABOUT[name], _table(load["points"])]
    return "\n\n".join(part.strip() for part in [*parts, *live_parts(live), NOT_HERE]) + "\n"


def _table(points: list[Point]) -> str:
    has_hits = "hits" in points[0]
    head = "replicas | router | requests/s | efficiency | TTFT P50, P95, s | between tokens P95, s"
    rows = []
    for point in points:
        row = [str(point["replicas"]), point["router"], f"{point['requests_per_s']:.2f}"]
        row += [percent(point["efficiency"]), f"{point['ttft_p50']:.2f}, {point['ttft_p95']:.2f}"]
        row += [f"{point['token_p95']:.3f}", *([percent(point["hits"])] if has_hits else [])]
        late = f"{point['late_p50']:+.2f}, {point['late_p95']:+.2f}" if "late_p50" in point else ""
        rows.append([*row, late])
    return table(head + (" | found cached" if has_hits else "") + " | after its quote P50, P95, s", rows)


def _plot(loads: dict[str, Any], path: Path) -> None:
    figure, rows = plt.subplots(
        len(PANELS), len(loads), figsize=(5 * len(loads), 3.6 * len(PANELS)), layout="constrained"
    )
    names = dict.fromkeys(point["router"] for load in loads.values() for point in load["points"][1:])
    colours = {router: f"C{number}" for number, router in enumerate(names)}
    for column, load in enumerate(loads.values()):
        one, *others = load["points"]
        for axes, (what, label) in zip(rows[:, column], PANELS.items(), strict=True):
            for router in dict.fromkeys(point["router"] for point in others):
                line = [one, *(point for point in others if point["router"] == router)]
                axes.plot(
                    [p["replicas"] for p in line], [p[what] for p in line], "o-", color=colours[router], label=router
                )
            axes.set(xlabel="replicas", ylabel=label, xscale="log", title=f"simulated: {load['title'].split(':')[0]}")
            axes.set_xticks([one["replicas"], *dict.fromkeys(p["replicas"] for p in others)])
            axes.xaxis.set_major_formatter("{x:.0f}")
            axes.minorticks_off()
            axes.set_ylim(bottom=0, top=8 if what == "ttft_p95" else None)  # prefixes without a bound go far beyond
            axes.grid(alpha=0.3)
        rows[0, column].legend(fontsize="x-small", loc="lower left")
    figure.savefig(path, dpi=64, metadata={"Software": None})
    plt.close(figure)
