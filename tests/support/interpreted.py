"""Run Pallas Mosaic GPU kernels on the CPU and find their races."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import pytest
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks  # jax has no public name for what is read here
from jax._src.pallas.mosaic_gpu.interpret.race_detection_state import GPURaceDetectionState

INTERPRET = plgpu.InterpretGPUParams(detect_races=True)


class RaceError(AssertionError):
    """Two accesses of one place, at least one of them a write, that nothing orders."""


@contextmanager
def watched() -> Iterator[list[Any]]:
    """For a block of statements that waits for the kernels that it interprets: yields a list that grows with each of
    them. RaceError at the end if any had a race."""
    states: list[Any] = []  # of every kernel that runs: the detector itself keeps only the last one

    def recorded(*args: Any, **kwargs: Any) -> Any:
        states.append(GPURaceDetectionState(*args, **kwargs))
        return states[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_callbacks, "GPURaceDetectionState", recorded)
        try:
            yield states
        except BaseException:
            gpu_callbacks.reset_gpu_interpret_mode_state()  # after an error no other kernel would run
            raise
    assert states, "no kernel was interpreted"
    if races := [number for number, state in enumerate(states) if state.races_found]:
        raise RaceError(f"in kernels {races} of {len(states)}")


def run(kernel: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What ``kernel`` returns interpreted; RaceError if it has a race, whatever it returns."""
    with watched():
        return jax.block_until_ready(jax.jit(lambda *args: kernel(*args, interpret=INTERPRET, **options))(*args))
