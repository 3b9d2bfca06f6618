"""Run Pallas Mosaic GPU kernels on the CPU and find their races."""

from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
from jax._src.pallas.mosaic_gpu.interpret.interpret_pallas_call import get_races, reset_gpu_interpret_mode_state

# jax has no public name for these two.

INTERPRET = plgpu.InterpretGPUParams(detect_races=True)


class RaceError(AssertionError):
    """Two accesses of one place, at least one of them a write, that nothing orders."""


def run(kernel: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What ``kernel`` returns interpreted; RaceError if it has a race, whatever it returns."""
    try:
        result = jax.block_until_ready(jax.jit(lambda *args: kernel(*args, interpret=INTERPRET, **options))(*args))
    except BaseException:
        reset_gpu_interpret_mode_state()  # after an error no other kernel would run
        raise
    if get_races().races_found:
        raise RaceError(kernel)
    return result
