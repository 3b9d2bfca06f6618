"""Time work on a device. All work has ended when the clock is read."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import jax

from scripts.gpu.rows.bench import Options

BACK_TO_BACK = 20
"""Calls of a sample that is to measure the device."""


class Sample(NamedTuple):
    """Seconds of one call, and the part of them after which the host had dispatched it."""

    seconds: float
    dispatched: float


def samples_of(run: Callable[[], object], repeats: int, *, calls: int = 1) -> list[Sample]:
    """Time ``repeats`` samples, after one that is not counted.

    A sample is ``calls`` calls, dispatched one after another and waited for together, which hides the dispatch of all
    but the first. Each result is dropped when the next comes, so that few of them are in the device's memory.
    """
    samples = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        result = None
        for _ in range(calls):
            result = run()
        dispatched = time.perf_counter()
        jax.block_until_ready(result)
        samples.append(Sample((time.perf_counter() - started) / calls, (dispatched - started) / calls))
    return samples[1:]


def seconds_of(run: Callable[[], object], repeats: int, *, calls: int = 1) -> list[float]:
    """Return the seconds of one call in each of ``repeats`` samples."""
    return [sample.seconds for sample in samples_of(run, repeats, calls=calls)]


def back_to_back(run: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return the median seconds of one of BACK_TO_BACK calls, and the share of them in which the host dispatched.

    A share near 1 means that the host was the slower one: then the seconds are the host's, not the device's.
    """
    samples = samples_of(run, repeats, calls=BACK_TO_BACK)
    return median(one.seconds for one in samples), median(one.dispatched / one.seconds for one in samples)


def compiled(
    function: Callable[..., Any],
    *args: Any,
    donate: tuple[int, ...] = (),
    options: Options = (),
) -> Callable[..., Any]:
    """Compile a function for arguments of these shapes.

    ``donate``: numbers of the arguments that it may overwrite. ``options``: of XLA.
    """
    lowered = jax.jit(function, donate_argnums=donate).lower(*args)
    program: Callable[..., Any] = lowered.compile(dict(options))
    return program
