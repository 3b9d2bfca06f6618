"""The kernels that are checked."""

import tempfile
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from jaxgen.config import ModelConfig
from jaxgen.device import device_info
from jaxgen.kernels import Kernel, Kernels, choose, hopper, reference
from scripts.device_check.sizes import Sizes

BLOCK_SIZE = 64
HOPPER = (9, 0)


@cache
def kernels_for(sizes: Sizes, model: ModelConfig) -> Kernels:
    """Those that a server would choose for the model on this device, which prove themselves first."""
    if not sizes.chosen_kernels:
        return reference(device_info())
    with tempfile.TemporaryDirectory() as directory:
        return choose(device_info(), model, BLOCK_SIZE, Path(directory))


def kernels_under_test(sizes: Sizes) -> Kernels:
    """Those made for this device, whether or not they prove right; XLA's where there are none."""
    options = pallas_options(sizes)
    return reference(device_info()) if options is None else hopper(options["num_ctas"])


def pallas_options(sizes: Sizes) -> dict[str, Any] | None:
    """How Pallas kernels that no server uses yet are to be called here; None where there are none for the device."""
    device = device_info()
    if not sizes.chosen_kernels or device.compute_capability != HOPPER:
        return None
    return {"num_ctas": device.num_cores}


def pallas_or(plain: Kernel, sizes: Sizes, entry: str, **options: Any) -> Kernel:
    """A kernel of pallas_kernels.gpu, ``entry`` being module:function, where the device has it, else ``plain``."""
    launch = pallas_options(sizes)
    if launch is None:
        return plain
    module, function = entry.split(":")
    kernel = getattr(import_module(f"pallas_kernels.gpu.{module}"), function)  # here: importing Mosaic takes time
    return partial(kernel, **options, **launch)
