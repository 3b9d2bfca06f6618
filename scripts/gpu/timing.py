"""Seconds of work on a device. Everything is waited for before the clock is read."""

import time
from collections.abc import Callable

import jax


def seconds_of(run: Callable[[], object], repeats: int, *, calls: int = 1) -> list[float]:
    """Seconds of one call in each of ``repeats`` samples, after one that is not counted.

    A sample is ``calls`` calls dispatched one after another and waited for together, which hides the dispatch of all
    but the first. Each result is dropped when the next comes, so the device's memory holds few of them.
    """
    samples = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        result = None
        for _ in range(calls):
            result = run()
        jax.block_until_ready(result)
        samples.append((time.perf_counter() - started) / calls)
    return samples[1:]
