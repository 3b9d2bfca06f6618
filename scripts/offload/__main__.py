"""Measure decoding with the context in host memory, streamed layer by layer (KVPR, arXiv 2411.17089).

    .venv/bin/python -m scripts.offload --smoke --out DIR          a minute on a CPU: DIR/summary.json
    .venv/bin/python -m scripts.offload                            all parts with a small OPT: 20 minutes
    .venv/bin/python -m scripts.offload --model opt-6.7b --part latency --seconds 400 --out DIR    on a GPU
    .venv/bin/python -m scripts.offload --pages                    docs/offload-results.md and its plots anew

Parts: ``latency``, ``throughput`` (columns), ``ablation``, ``links``, ``restore``. Each replaces what
OUT/offload-MODEL-DEVICE.json has of it (default OUT: docs/results), from which the page is made; with ``--resume`` it
adds what is missing, so that a part may be measured in several calls.

Modes: ``full`` waits for all of a layer's KV, computes, then asks for the next layer's; ``overlapped`` brings the next
layer's KV meanwhile; ``fixed`` brings half of the context as layer inputs and projects them; ``planned`` as much as the
planner says. The planner knows only rates that were measured, in steps without overlap at other prompt lengths.

A simulated link really copies every byte, on a thread of its own, and holds each copy back until its bytes would have
passed; the computation is real. With the small OPT links are scaled: one that stands for the paper's 32 GB/s is so slow
that projecting a token takes the same part, 0.42, of transferring its KV as for OPT-6.7B at 312 TFLOP/s.
"""

import argparse
import json
import sys
import time
from math import inf
from pathlib import Path
from typing import Any

from jaxgen.runner.model_runner import device_info
from scripts.offload.bench import Bench, kernels_here
from scripts.offload.page import write_page
from scripts.offload.parts import PARTS, Parts, run_part
from scripts.offload.results import read_record, write_record
from scripts.offload.settings import SETTINGS, SMOKE
from scripts.offload.smoke import smoke

DOCS = Path(__file__).resolve().parents[2] / "docs"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a small model, and a simulated link")
    parser.add_argument("--model", choices=list(SETTINGS), default="small")
    parser.add_argument("--part", default=",".join(PARTS), help="comma-separated; default: %(default)s")
    parser.add_argument("--out", type=Path, default=DOCS / "results", help="directory; default: docs/results")
    parser.add_argument("--pages", action="store_true", help="measure nothing, write the page")
    parser.add_argument("--resume", action="store_true", help="measure only the cases that the record has not")
    parser.add_argument("--seconds", type=float, default=inf, help="begin no case after so many; default: no limit")
    parser.add_argument("--bandwidth", type=float, help="of the smoke's link, bytes a second")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    if unknown := set(args.part.split(",")) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    args.out.mkdir(parents=True, exist_ok=True)
    if args.smoke:
        run_smoke(args.out, args.bandwidth, args.repeats)
        return 0
    if not args.pages:
        deadline = time.monotonic() + args.seconds
        run_parts(args.out, args.model, args.part.split(","), args.repeats, deadline, resume=args.resume)
    if args.out == DOCS / "results":
        write_page(DOCS)
    return 0


def run_smoke(out: Path, bandwidth: float | None, repeats: int) -> None:
    """Write ``out``/summary.json."""
    started = time.perf_counter()
    bench = Bench(SMOKE, kernels_here(SMOKE.model, SMOKE.block_size))
    summary = smoke(bench, bandwidth, repeats)
    summary |= {"device": str(device_info()), "elapsed_seconds": time.perf_counter() - started}
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    flat: dict[str, Any] = {name: value for name, value in summary.items() if not isinstance(value, list | dict)}
    print(json.dumps(flat, indent=2))


def run_parts(out: Path, model: str, names: list[str], repeats: int, deadline: float, *, resume: bool) -> None:
    """Measure, and write the record after each row, so that a run that is cut off leaves what it had."""
    setting, device = SETTINGS[model], device_info()
    parts = Parts(setting, kernels_here(setting.model, setting.block_size), repeats)
    record = read_record(out, model, device)
    for name in names:
        started, rows = time.perf_counter(), list[dict[str, Any]]()
        known = record.rows(name) if resume else []
        for row in run_part(parts, name, known, deadline):
            rows.append(row)
            record.put(name, rows, repeats=repeats, seconds=time.perf_counter() - started)
            write_record(out, record)


if __name__ == "__main__":
    sys.exit(main())
