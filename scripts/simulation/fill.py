"""The curve between early first tokens and short gaps: every rule that fills steps is a point (docs/fill.png)."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl

from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.scheduling.cost_model import LinearCost
from jaxgen.scheduling.fill import DEFAULT_FILL, FillRule
from jaxgen.scheduling.step_time import StepTimeModel
from jaxgen.server.benchmark.metrics import percentile
from jaxgen.sizing.token_budget import CPU_ROWS, CPU_WIDTH
from scripts.peers.load import Cell
from scripts.peers.page import cells
from scripts.peers.records import Records
from scripts.peers.shapes import DEFAULT, SHAPES
from scripts.simulation.load import Due, Load, OpenLoop, SimulatedRequest, closed_loop, normal_requests
from scripts.simulation.loop import Simulation, seconds_at
from scripts.simulation.policies import SplitFuse

mpl.use("Agg")
from matplotlib import pyplot as plt

COSTS = {
    "bfloat16": LinearCost(base=0.0042, per_token=0.00018),
    "float32": LinearCost(base=0.0080, per_token=0.00029),
}
"""88M on the machine of docs/peers.md: one decode 4.4 and 8.3 ms, a step of 256 tokens 50 and 82 ms by the P95 between
tokens of 16 clients."""
WIDTH, ROWS, SEED = CPU_WIDTH, CPU_ROWS, 1
LONG = 2000
BUDGETS = (48, 64, 96, 128, 192, 256, 384)
STRETCHES = (3.0, 4.0, 5.0, 6.0, 8.0, 12.0)
CELLS = ((4, False), (16, False), (4, True))
"""Clients, and whether long prompts come beside them, as in docs/peers.md but less often: one each 1.3 s."""
MEASURED = ("jaxgen", "OpenVINO split-fuse", "vLLM")


class BesideLong:
    """Clients in a closed loop, and long prompts that come whatever became of those before."""

    def __init__(self, clients: Load, long: Load) -> None:
        self.clients, self.long = clients, long

    @property
    def next_due(self) -> float:
        return min(self.clients.next_due, self.long.next_due)

    def take(self, now: float) -> list[Due]:
        return [*self.clients.take(now), *self.long.take(now)]

    def ended(self, now: float, request: SimulatedRequest) -> None:
        (self.long if request.prompt_tokens == LONG else self.clients).ended(now, request)


def study() -> Iterator[dict[str, Any]]:
    """Yield the figures of each rule at each load, in each format of weights."""
    constant = FillRule(stretch=inf, gap=inf)
    for name, (clients, long) in product(COSTS, CELLS):
        for budget in BUDGETS:
            found = _point(f"{budget} tokens", clients, StepTimeModel(budget, COSTS[name]), constant, long=long)
            yield {"format": name, "kind": "constant", **found}
        for stretch in STRETCHES:
            rule = replace(DEFAULT_FILL, stretch=stretch)
            found = _point(f"{stretch:g} times", clients, StepTimeModel(WIDTH, COSTS[name]), rule, long=long)
            yield {"format": name, "kind": "rule", **found}


def _point(name: str, clients: int, step_time: StepTimeModel, rule: FillRule, *, long: bool) -> dict[str, Any]:
    budget = step_time.token_budget
    config = SchedulerConfig(budget, min(ROWS, budget), 8192)
    policy = SplitFuse(config, CacheConfig(16, 20_000), step_time=step_time, fill=rule, runs_ahead=False)
    load: Load = closed_loop(normal_requests(256, 60, 150 if long else 400, SEED), clients, SEED)
    if long:
        request = SimulatedRequest(prompt_tokens=LONG, output_tokens=16)
        load = BesideLong(load, OpenLoop(Due(1.3 * i, request) for i in range(40)))
    records = Simulation(policy, seconds_at(step_time), load).run().records
    end = max(one.end for one in records)
    seen = [one for one in records if 0.1 * end < one.start < 0.8 * end]
    short = [one for one in seen if one.prompt_tokens < LONG / 2]
    first = sorted(one.first_token_time for one in short)
    gaps = sorted(gap for one in short for gap in one.inter_token_times())
    found: dict[str, Any] = {"rule": name, "clients": clients, "long": long}
    found |= {"ttft_p50": percentile(first, 50), "ttft_p95": percentile(first, 95), "gap_p95": percentile(gaps, 95)}
    waits = [one.first_token_time for one in seen if one.prompt_tokens >= LONG / 2]
    return found | {"long_ttft_p50": median(waits) if waits else None}


def run_study(docs: Path) -> None:
    """Write docs/results/fill.json and docs/fill.png."""
    points = list(study())
    (docs / "results" / "fill.json").write_text(json.dumps(points, indent=1) + "\n")
    plot(points, measured(SHAPES[DEFAULT].results), docs / "fill.png")


def measured(path: Path) -> list[dict[str, Any]]:
    """Return the points of jaxgen and its peers, medians of rounds, from scripts.peers' results."""
    records = Records.read(path)
    found = []
    for name, peer, clients in product(COSTS, MEASURED, (4, 16)):
        servers = records.of_kind("server", format=name)
        alike = list(cells(servers, peer, Cell(clients=clients)).values())
        if alike:
            ttft, gap = (median(c[key][q] for c in alike) for key, q in (("ttft_s", "p50"), ("inter_token_s", "p95")))
            found.append({"format": name, "peer": peer, "clients": clients, "ttft_p50": ttft, "gap_p95": gap})
    return found


def plot(points: list[dict[str, Any]], peers: list[dict[str, Any]], path: Path) -> None:
    """Write a PNG: for each format and load, P95 between tokens over TTFT P50; simulated rules, and peers as
    measured."""
    figure, panels = plt.subplots(len(COSTS), len(CELLS), figsize=(15, 4.5 * len(COSTS)), layout="constrained")
    for axes, (name, (clients, long)) in zip(panels.flat, product(COSTS, CELLS), strict=True):
        title = f"{name}, {clients} clients" + (f" beside prompts of {LONG:,}" if long else "")
        axes.set(title=title, xlabel="TTFT P50, ms", ylabel="P95 between tokens, ms", xscale="log")
        for kind, style in (("constant", "s--"), ("rule", "o-")):
            here = {"format": name, "clients": clients, "long": long, "kind": kind}
            line = [p for p in points if p.items() >= here.items()]
            x, y = ([1000 * p[key] for p in line] for key in ("ttft_p50", "gap_p95"))
            axes.plot(
                x, y, style, label="as many tokens in every step" if kind == "constant" else "the rule, by stretch"
            )
            for at_x, at_y, point in zip(x, y, line, strict=True):
                axes.annotate(
                    point["rule"].split()[0],
                    (at_x, at_y),
                    fontsize="x-small",
                    xytext=(3, 3),
                    textcoords="offset points",
                )
        for peer in [] if long else peers:
            if (peer["format"], peer["clients"]) == (name, clients):
                axes.plot(1000 * peer["ttft_p50"], 1000 * peer["gap_p95"], "x", label=f"{peer['peer']}, measured")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    figure.savefig(path, dpi=64, metadata={"Software": None})
    plt.close(figure)
