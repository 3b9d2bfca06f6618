"""Time work on a device. All work has ended when the clock is read."""

import time
from collections.abc import Callable
from typing import Any

import jax

from scripts.gpu.bench import Options


def seconds_of(run: Callable[[], object], repeats: int, *, calls: int = 1) -> list[float]:
    """Return the seconds of one call in each of ``repeats`` samples, after one sample that is not counted.

    A sample is ``calls`` calls, dispatched one after another and waited for together, which hides the dispatch of all
    but the first. Each result is dropped when the next comes, so that few of them are in the device's memory.
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
