"""The kernels that are checked."""

import tempfile
from functools import cache
from pathlib import Path

from jaxgen.config import ModelConfig
from jaxgen.device import device_info
from jaxgen.kernels import REFERENCE, Kernels, choose
from scripts.device_check.sizes import Sizes

BLOCK_SIZE = 64


@cache
def kernels_for(sizes: Sizes, model: ModelConfig) -> Kernels:
    """Those that a server would choose for the model on this device, which prove themselves first."""
    if not sizes.chosen_kernels:
        return REFERENCE
    with tempfile.TemporaryDirectory() as directory:
        return choose(device_info(), model, BLOCK_SIZE, Path(directory))
