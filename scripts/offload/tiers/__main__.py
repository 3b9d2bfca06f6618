"""Time the first token of a prefix that only a KV tier has, over delayed links, beside computing it.

One engine computes a few contexts, of which device and host memory hold less than all. Then each policy in turn asks
for the next one: recompute computes it, transfer fetches it from the tier, plan does what its rates say. A delayed link
ends each call of the store when a link of that rate and latency would have; what the store itself takes is in it.
Prints a line of JSON for each link; --table prints such lines as a table.

    .venv/bin/python -m scripts.offload.tiers --tier redis://127.0.0.1 --links 10,40,160,640,2000,0 --latency-ms 1
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from jaxgen.core.tier_address import tier_address
from scripts.measure.shapes import SHAPES
from scripts.measure.step_time import kernels_for
from scripts.offload.tiers.measurement import POLICIES, Measurement


def main() -> None:
    """Print a line of JSON for each link, or a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--tier", help="as --kv-tier (default: a directory that is removed)")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="88m")
    parser.add_argument("--links", default="10,40,160,640,2000,0", help="MB/s; 0: no delay")
    parser.add_argument("--latency-ms", type=float, default=1.0, help="of a call, but with link 0")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--token-budget", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the table of these results")
    args = parser.parse_args()
    if args.table is not None:
        print(table([json.loads(line) for line in args.table.read_text().splitlines()]))
        return
    with tempfile.TemporaryDirectory() as directory:
        tier = tier_address(args.tier or directory)
        assert tier is not None
        model = SHAPES[args.shape]
        measurement = Measurement(model, kernels_for("chosen", model), tier, args.tokens, args.token_budget)
        kind = type(tier).__name__.removesuffix("Address").lower()
        for link in map(float, args.links.split(",")):
            rate, latency = (link * 1e6, args.latency_ms / 1e3) if link else (float("inf"), 0.0)
            found = measurement.measure(rate, latency, args.repeats)
            print(json.dumps({"tier": kind, "shape": args.shape, **found}), flush=True)


def table(results: list[dict[str, Any]]) -> str:
    """Return the rows of a Markdown table, one for each link."""
    head = "| tier | delayed link, MB/s, ms a call | computed | fetched | planned | of it computed, tokens |"
    lines = [head, "|---|---:|---:|---:|---:|---:|"]
    for one in results:
        medians = [one["median"][policy] for policy in POLICIES]
        best = min(medians)
        shown = [f"**{value:.3f}**" if value == best else f"{value:.3f}" for value in medians]
        link = "none" if one["link"] is None else f"{one['link'] / 1e6:,.0f}, {1e3 * one['latency']:g}"
        computed = ", ".join(f"{count:,}" for count in sorted(set(one["computed"]["plan"])))
        lines.append(f"| {one['tier']} | {link} | {' | '.join(shown)} | {computed} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
