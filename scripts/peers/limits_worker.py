"""``-m scripts.peers.limits_worker THREADS``: what torch's own products reach on this machine, as a line of JSON.

Runs in an environment of torch. Memory is read by products of a matrix that no cache holds and a vector.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial

import torch

SECONDS = 3.0
ROWS, COLUMNS = 16384, 8192
SIDE = 2048


def least_seconds(run: Callable[[], object]) -> float:
    """Of the calls that fit into ``SECONDS``."""
    run()
    end, least = time.perf_counter() + SECONDS, float("inf")
    while (begin := time.perf_counter()) < end:
        run()
        least = min(least, time.perf_counter() - begin)
    return least


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]))
    matrix, vector = torch.ones(ROWS, COLUMNS), torch.ones(COLUMNS)
    limits = {"memory_bytes_per_s": matrix.nbytes / least_seconds(lambda: matrix @ vector)}
    for name in ("float32", "bfloat16"):
        a, b = (torch.randn(SIDE, SIDE).to(getattr(torch, name)) for _ in range(2))
        limits[f"{name}_flops_per_s"] = 2 * SIDE**3 / least_seconds(partial(torch.matmul, a, b))
    print(json.dumps(limits))


if __name__ == "__main__":
    main()
