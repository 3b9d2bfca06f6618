"""Measure decoding with the context in host memory, streamed layer by layer (KVPR, arXiv 2411.17089).

    .venv/bin/python -m scripts.offload --smoke --out DIR          a minute on a CPU: DIR/summary.json
    .venv/bin/python -m scripts.offload                            all parts with a small OPT
    .venv/bin/python -m scripts.offload --model opt-6.7b --part latency     on a GPU

Prints a line of JSON for each case. Parts: ``latency``, ``ablation``, ``links``, ``restore``.

Modes: ``full`` waits for all of a layer's KV, computes, then asks for the next layer's; ``overlapped`` brings the next
layer's KV meanwhile; ``fixed`` brings half of the context as layer inputs and projects them; ``planned`` as much as the
planner says. The planner knows only rates that were measured, in steps without overlap at other prompt lengths.

A simulated link copies every byte, on a thread of its own, and holds each copy back until its bytes would have passed;
the computation is real. With the small OPT links are scaled: one that stands for the paper's 32 GB/s is so slow that
projecting a token takes the same part, 0.42, of transferring its KV as for OPT-6.7B at 312 TFLOP/s.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from jaxgen.runner.model_runner import device_info
from scripts.offload.bench import Bench, kernels_here
from scripts.offload.parts import PARTS, Parts
from scripts.offload.settings import SETTINGS, SMOKE
from scripts.offload.smoke import smoke


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a small model, and a simulated link")
    parser.add_argument("--model", choices=list(SETTINGS), default="small")
    parser.add_argument("--part", default=",".join(PARTS), help="comma-separated; default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path(), help="directory of the smoke's summary.json; default: here")
    parser.add_argument("--bandwidth", type=float, help="of the smoke's link, bytes a second")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    if unknown := set(args.part.split(",")) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if args.smoke:
        args.out.mkdir(parents=True, exist_ok=True)
        run_smoke(args.out, args.bandwidth, args.repeats)
        return 0
    setting = SETTINGS[args.model]
    parts = Parts(setting, kernels_here(setting.model, setting.block_size), args.repeats)
    for name in args.part.split(","):
        for case in PARTS[name](parts):
            print(json.dumps({"part": name} | case.name | case.measure()), flush=True)
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


if __name__ == "__main__":
    sys.exit(main())
