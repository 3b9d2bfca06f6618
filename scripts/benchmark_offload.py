"""Measure decoding with the context in host memory, streamed layer by layer (KVPR, arXiv 2411.17089).

    .venv/bin/python scripts/benchmark_offload.py --smoke --out DIR     a minute on a CPU: DIR/summary.json
    .venv/bin/python scripts/benchmark_offload.py --out DIR             OPT-6.7B on a GPU, the paper's latency table

Modes: ``full`` waits for all of a layer's KV, computes, then asks for the next layer's; ``overlapped`` brings the next
layer's KV meanwhile; ``fixed`` brings half of the context as layer inputs and projects them; ``planned`` as much as the
planner says. The planner knows only rates that were measured, in steps without overlap at other prompt lengths.

A simulated link really copies every byte, on a thread of its own, and holds each copy back until its bytes would have
passed; the computation is real. ``--smoke`` without ``--bandwidth`` simulates a link so slow that projecting a token
takes 0.3 of what transferring its KV does (0.42: the paper's OPT-6.7B on an A100 behind 32 GB/s).
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jaxgen.device import device_info
from scripts.offload_benchmark.bench import Bench, kernels_here
from scripts.offload_benchmark.settings import PAPER, SMOKE
from scripts.offload_benchmark.tables import paper, smoke


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a small model, and a simulated link")
    parser.add_argument("--out", type=Path, required=True, help="directory for summary.json")
    parser.add_argument("--bandwidth", type=float, help="of the smoke's link, bytes a second")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    setting = SMOKE if args.smoke else PAPER
    started = time.perf_counter()
    bench = Bench(setting, kernels_here(setting.model, setting.block_size))
    summary = smoke(bench, args.bandwidth, args.repeats) if args.smoke else paper(bench, args.repeats)
    summary |= {"device": str(device_info()), "elapsed_seconds": time.perf_counter() - started}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(json.dumps({name: value for name, value in summary.items() if not isinstance(value, list | dict)}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
