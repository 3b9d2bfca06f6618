"""GPU kernels on a CPU, in Mosaic's interpreter, with its race detector."""

from typing import Any

import jax
import pytest
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks
from jax._src.pallas.mosaic_gpu.interpret.race_detection_state import GPURaceDetectionState
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gpu.ragged_paged_attention import Launch, ragged_paged_attention

LAUNCH = Launch(programs=2, interpret=plgpu.InterpretGPUParams(detect_races=True))
"""So few programs that each takes many items."""


class Races:
    """What the detector found in each kernel that ran since this was made; it keeps the last kernel's only."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._states: list[Any] = []

        def recorded(*args: Any, **kwargs: Any) -> Any:
            self._states.append(GPURaceDetectionState(*args, **kwargs))
            return self._states[-1]

        patch.setattr(gpu_callbacks, "GPURaceDetectionState", recorded)

    def take(self) -> list[bool]:
        """Whether there was one, for each kernel since the last call."""
        found = [state.races_found for state in self._states]
        self._states.clear()
        return found


def attention(*args: Any, **options: Any) -> jax.Array:
    """The kernel in the interpreter."""
    return ragged_paged_attention(*args, **options, launch=LAUNCH)
