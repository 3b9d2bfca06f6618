"""What flags of ``jaxgen serve`` change: two servers are up, one with them, and the same loads meet them in turns.

    .venv/bin/python -m scripts.measure.flags --flags=--single-shape --clients 1,4 --pairs 10
    .venv/bin/python -m scripts.measure.flags --flags="--token-budget 128" --shape embedded

Prints the ratios of each pair, with the flags over without, as a median with the second and the eighth of ten. The two
take turns at being first, so that a machine that others use too meets both alike.
"""

import argparse
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from jaxgen.hardware.device_info import this_cpu
from scripts.measure.promises import EMBEDDED, launch
from scripts.peers.load import Cell, Times, measure
from scripts.peers.peer import Site
from scripts.peers.process import free_port, running
from scripts.peers.shapes import SHAPES

FIGURES: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "output tokens/s": lambda cell: cell["output_tokens_per_s"],
    "TTFT P50": lambda cell: cell["ttft_s"]["p50"],
    "between tokens P50": lambda cell: cell["inter_token_s"]["p50"],
    "between tokens P95": lambda cell: cell["inter_token_s"]["p95"],
}
PATIENCE = 60.0


def compare(urls: list[str], clients: int, pairs: int, times: Times) -> None:
    """Measure both servers ``pairs`` times and print a line for each figure."""
    ratios: dict[str, list[float]] = {name: [] for name in FIGURES}
    for pair in range(pairs):
        found: dict[str, dict[str, Any]] = {}
        for url in urls if pair % 2 else reversed(urls):
            found[url] = measure(url, "continuous", Cell(clients=clients), times, 1000 * clients + pair)
        for name, read in FIGURES.items():
            plain, flagged = (read(found[url]) for url in urls)
            if plain and flagged:
                ratios[name].append(flagged / plain)
    for name, values in ratios.items():
        tenths = quantiles(values, n=10) if len(values) > 1 else values * 9
        print(f"  {clients} clients, {name}: {median(values):.3f} ({tenths[1]:.3f} to {tenths[7]:.3f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flags", required=True, help="of one of the servers, as in --flags=--single-shape")
    parser.add_argument("--shape", choices=(EMBEDDED, *SHAPES), default="88m")
    parser.add_argument("--clients", default="1,4", help="closed loops, comma-separated")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load that are measured")
    parser.add_argument("--work-dir", type=Path, default=Path(tempfile.gettempdir()) / "peers-work")
    args = parser.parse_args()
    site = Site(args.work_dir.resolve(), this_cpu().num_cores, args.shape)
    with ExitStack() as servers:
        urls = []
        for name, flags in (("plain", []), ("flags", args.flags.split())):
            port, log = free_port(), site.log(f"flags-{args.shape}-{name}")
            command = launch(site, port)
            command = replace(command, command=[*command.command, *flags])
            urls.append(servers.enter_context(running(command, port, site.cores, log)).base_url)
        print(f"{args.shape}, {args.flags} over none, {args.pairs} pairs")
        for clients in map(int, args.clients.split(",")):
            compare(urls, clients, args.pairs, Times(args.seconds, 1.0, PATIENCE))


if __name__ == "__main__":
    main()
