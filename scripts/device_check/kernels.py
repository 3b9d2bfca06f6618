"""The kernels that are checked."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from jaxgen.config import ModelConfig
from jaxgen.device import device_info
from jaxgen.kernels import REFERENCE, Kernels, choose
from scripts.device_check.sizes import Sizes

BLOCK_SIZE = 64
HOPPER = (9, 0)


@cache
def kernels_for(sizes: Sizes, model: ModelConfig) -> Kernels:
    """Those that a server would choose for the model on this device, which prove themselves first."""
    if not sizes.chosen_kernels:
        return REFERENCE
    with tempfile.TemporaryDirectory() as directory:
        return choose(device_info(), model, BLOCK_SIZE, Path(directory))


def pallas_options(sizes: Sizes) -> dict[str, Any] | None:
    """How Pallas kernels that no server uses yet are to be called here; None where there are none for the device."""
    device = device_info()
    if not sizes.chosen_kernels or device.compute_capability != HOPPER:
        return None
    return {"num_ctas": device.num_cores}
