"""The page docs/simulation.md, from what simulations and checks left in docs/results."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scripts.offload.page import percent, table
from scripts.simulation.check import FIGURES, WITHIN
from scripts.simulation.fastgen import PUBLISHED, figure_samples, fit_with_floor, residuals
from scripts.simulation.merits import SLAS, Curves, Point
from scripts.simulation.plots import STYLES, plot_setting
from scripts.simulation.texts import CHECK, COSTS, DIFFERENCES, INTRO, NOT_CHECKED

PAGE = "simulation.md"
RESULTS = "simulation.json"
CHECKS = "simulation-check-*.json"
SHOWN_CLIENTS = (1, 4, 8, 16, 32, 64)


def write_page(docs: Path) -> None:
    """The page, and a plot of each setting beside it."""
    for name, setting in _settings(docs).items():
        plot_setting(setting["title"], Curves(setting["points"]), docs / _picture(name))
    (docs / PAGE).write_text(page(docs))


def page(docs: Path) -> str:
    found = _settings(docs)
    curves = {name: Curves(setting["points"]) for name, setting in found.items()}
    parts = [INTRO, COSTS, _costs(), "## Against what was published", _published(curves), DIFFERENCES]
    for name, setting in found.items():
        parts += [f"## {setting['title']}", _about(setting), f"![curves]({_picture(name)})", *_curves(curves[name])]
    checks = [json.loads(path.read_text()) for path in sorted((docs / "results").glob(CHECKS))]
    parts += [CHECK, *(map(_check, checks) if checks else [NOT_CHECKED])]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _settings(docs: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((docs / "results" / RESULTS).read_text())
    return found


def _picture(setting: str) -> str:
    return f"simulation-{setting}.png"


def _costs() -> str:
    samples = figure_samples()
    cost = fit_with_floor(samples)
    rows = [
        [
            str(sample.tokens),
            f"{1e3 * sample.seconds:.0f}",
            f"{1e3 * cost.seconds(sample.tokens):.0f}",
            percent(error, sign=True),
        ]
        for sample, error in zip(samples, residuals(cost, samples), strict=True)
    ]
    line = f"max({1e3 * cost.floor:.1f} ms, {1e3 * cost.base:.2f} ms + {1e3 * cost.per_token:.4f} ms for each token)"
    return table("tokens | figure, ms (F) | fit, ms | the fit's error", rows) + f"\n\nThe fit is {line}."


def _published(curves: dict[str, Curves]) -> str:
    merits = {
        name: {policy: of.merits(policy) for policy in ("SplitFuse", "prompt-first")} for name, of in curves.items()
    }
    rows = []
    for one in PUBLISHED:
        cells = [one.what + (" (F)" if one.read else ""), _pair(one.fastgen, one.vllm)]
        for name, of in merits.items():
            known = name in one.settings
            cells.append(_pair(of["SplitFuse"][one.name], of["prompt-first"][one.name]) if known else "")
        rows.append(cells)
    return table("2600 + 60 tokens | FastGen, vLLM: ratio | " + " | ".join(merits), rows)


def _pair(one: float | None, other: float | None) -> str:
    if one is None or other is None:
        return ", ".join("-" if value is None else f"{value:.3g}" for value in (one, other))
    return f"{one:.3g}, {other:.3g}: **{one / other:.2f}**"


def _about(setting: dict[str, Any]) -> str:
    cost = setting["cost"]
    line = f"{1e3 * cost['base']:.1f} ms + {1e3 * cost['per_token']:.4f} ms for each token"
    floor = f", {1e3 * cost['floor']:.1f} ms at least" if cost["floor"] else ""
    return f"A step takes {line}{floor}. The cache has {setting['cache_tokens']:,} tokens."


def _curves(curves: Curves) -> Iterable[str]:
    head = "clients | " + " | ".join(STYLES)
    for load in curves.loads:
        rows = [[str(n), *(_point(curves.at(policy, load, n)) for policy in STYLES)] for n in SHOWN_CLIENTS]
        yield f"### {load[0]} + {load[1]} tokens"
        yield "Requests/s; mean latency; TTFT P50; token latency P50, P95, in seconds:\n\n" + table(head, rows)
        best = [[f"SLA {sla}", *(_peak(curves.peak(policy, load, sla), sla) for policy in STYLES)] for sla in SLAS]
        ratios = [
            _effective(curves, "SplitFuse", load, sla) / _effective(curves, "prompt-first", load, sla) for sla in SLAS
        ]
        for row, ratio in zip(best, ratios, strict=True):
            row.append(f"{ratio:.2f}")
        yield (
            "The most effective throughput, requests/s (at so many clients, share of requests in time):\n\n"
            + table(f"tokens/s | {' | '.join(STYLES)} | SplitFuse : prompt-first", best)
        )


def _effective(curves: Curves, policy: str, load: tuple[int, int], sla: str) -> float:
    return float(curves.peak(policy, load, sla)["effective"][sla]["requests_per_s"])


def _point(point: Point | None) -> str:
    if point is None:
        return "-"
    return (
        f"{point['requests_per_s']:.2f}; {point['latency_mean']:.1f}; {point['ttft_p50']:.2f}; "
        f"{point['token_p50']:.3f}, {point['token_p95']:.3f}"
    )


def _peak(point: Point, sla: str) -> str:
    effective = point["effective"][sla]
    return f"{effective['requests_per_s']:.2f} ({point['clients']}, {percent(effective['ok_ratio'])})"


def _attention(cost: dict[str, float]) -> str:
    """Return what attention adds; older results have one part for prompts and decodes."""
    parts = {"per_position": "a position", "per_context": "of a decode's context"}
    return " + ".join(f"{1e9 * cost[name]:.1f} ns {text}" for name, text in parts.items() if name in cost)


def _check(found: dict[str, Any]) -> str:
    loads = found["loads"]
    worst = max(abs(error) for load in loads for error in load["error"].values())
    rows = [[load["load"], *(_compared(load, name) for name in FIGURES)] for load in loads]
    programs = "; ".join(
        f"{name}: {1e3 * program['cost']['base']:.2f} ms + {1e6 * program['cost']['per_token']:.1f} us a token + "
        f"{_attention(program['cost'])}, measured over fitted from "
        f"{program['spread']['p5']:.2f} to {program['spread']['p95']:.2f} (P5, P95), {program['steps']} steps"
        for name, program in found["programs"].items()
    )
    verdict = "within" if worst <= WITHIN else "**not within**"
    return (
        f"### {found['model']}, {found['dtype']}\n\n{found['device']}, {found['date']}; medians of {found['rounds']} "
        f"rounds; load average {min(found['load_average']):.1f} to {max(found['load_average']):.1f}. The largest error "
        f"is {percent(worst)}, {verdict} {percent(WITHIN)}.\n\n"
        + table("load | " + " | ".join(FIGURES.values()), rows)
        + f"\n\nFitted: {programs}."
    )


def _compared(load: dict[str, Any], name: str) -> str:
    scale = 1e3 if "ms" in FIGURES[name] else 1.0
    predicted, measured = scale * load["predicted"][name], scale * load["measured"][name]
    return f"{predicted:.3g}, {measured:.3g} ({percent(load['error'][name], sign=True)})"
