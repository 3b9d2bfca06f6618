"""The live part of docs/scale.md, from docs/results/scaling.json."""

from collections.abc import Iterable
from math import inf, isfinite
from statistics import mean, median
from typing import Any

from scripts.scaling.texts import PINNED, SLEEPING
from scripts.tables import percent, table

LIVE = "scaling.json"
HEAD = "TTFT P50, P95, s | between tokens P95, s | cores kept busy by servers, router, client"


def live_parts(found: dict[str, Any]) -> list[str]:
    """Return the sections and tables of the studies that have been measured."""
    parts = []
    if "pinned" in found:
        study = found["pinned"]
        parts += ["## Live: two replicas on a core each", _about(PINNED, study), _pinned(study["points"])]
    if "sleeping" in found:
        study = found["sleeping"]
        parts += ["## Live, but for the device: 1 to 16 processes", _about(SLEEPING, study), _sleeping(study["points"])]
    return parts


def _about(text: str, study: dict[str, Any]) -> str:
    most = max((point.get("resident_bytes", 0) for point in study["points"]), default=0)
    return text.format(
        machine=study["machine"],
        window=f"{study['window_s']:g}",
        warmup=f"{study['warmup_s']:g}",
        rounds=1 + max(point.get("round", 0) for point in study["points"]),
        resident=f"{most / 2**20:.0f}",
    )


def _pinned(points: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(point["router"] for point in points))
    rates = {name: median(_all(points, name, "output_tokens_per_s")) for name in names}
    one = mean(rates[name] for name in names if name.startswith("one alone"))
    rows = []
    for name in names:
        runs = [point for point in points if point["router"] == name]
        replicas = runs[0]["replicas"]
        each = _all(points, name, "output_tokens_per_s")
        row = [str(replicas), name, f"{rates[name]:.0f} ({min(each):.0f}-{max(each):.0f})"]
        rows.append([*row, percent(rates[name] / (replicas * one)), *_times(runs), _cores(runs)])
    return table(f"replicas | router | tokens/s (least, most) | of one alone (mean), each | {HEAD}", rows)


def _sleeping(points: list[dict[str, Any]]) -> str:
    one = {point["router"]: point for point in points if point["replicas"] == 1}
    rows = []
    for point in sorted(points, key=lambda point: (point["replicas"], point["router"])):
        base = one.get(point["router"], one["SMG"])["output_tokens_per_s"]
        row = [str(point["replicas"]), point["router"], f"{point['requests_per_s']:.2f}"]
        row += [f"{point['output_tokens_per_s']:.0f}", percent(point["output_tokens_per_s"] / point["replicas"] / base)]
        rows.append([*row, *_times([point]), _cores([point])])
    return table(f"processes | router | requests/s | tokens/s | efficiency | {HEAD}", rows)


def _all(points: Iterable[dict[str, Any]], name: str, what: str) -> list[float]:
    return [point[what] for point in points if point["router"] == name]


def _times(runs: list[dict[str, Any]]) -> list[str]:
    p50, p95 = (_told([run["ttft_s"][q] for run in runs]) for q in ("p50", "p95"))
    return [f"{p50}, {p95}", f"{median(run['inter_token_s']['p95'] for run in runs):.3f}"]


def _told(seconds: list[float | None]) -> str:
    """Return the median; None is the time of a first token that did not come."""
    found = median(inf if one is None else one for one in seconds)
    return f"{found:.2f}" if isfinite(found) else "-"


def _cores(runs: list[dict[str, Any]]) -> str:
    if "cores" not in runs[0]:
        return ""
    names = [name for name in ("servers", "router", "client") if name in runs[0]["cores"]]
    found = {name: f"{median(run['cores'][name] for run in runs):.2f}" for name in names}
    return ", ".join(found.get(name, "-") for name in ("servers", "router", "client"))
