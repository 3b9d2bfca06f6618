"""Choose the kernels to check: those made for the device, even where a server would choose others."""

from dataclasses import replace
from functools import cache, partial

from jaxgen.core.config import ModelConfig
from jaxgen.kernels.choice import hopper, maker_of, reference
from jaxgen.kernels.kernels import Kernel, Kernels
from jaxgen.runner.model_runner import device_info
from pallas_kernels.partial_recompute import partial_recompute_ref
from scripts.gpu.result.plan import REGISTERS, Registers
from scripts.gpu.rows.bench import Bench

BLOCK_SIZE = 64
HOPPER = (9, 0)


def kernels_for(bench: Bench, *, num_ctas: int | None = None, model: ModelConfig | None = None) -> Kernels:
    """Return Pallas kernels on grids of ``num_ctas`` thread blocks (None: one per multiprocessor), or else XLA's.

    A ``model`` whose KV cache has codes has XLA's kernels, as in a server.
    """
    if model is not None and model.kv_dtype != "auto":
        return reference(device_info())
    return _kernels_for(bench.registers, num_ctas) if bench.sizes.pallas else reference(device_info())


@cache
def _kernels_for(registers: Registers, num_ctas: int | None) -> Kernels:
    device = device_info()
    make, num_ctas = maker_of(device), num_ctas or device.num_cores
    if make is None:
        return reference(device)
    if make is hopper and registers != REGISTERS:
        return replace(hopper(num_ctas, registers), name=f"Hopper, {'/'.join(map(str, registers))} registers")
    return make(num_ctas)


def recompute_kernel(bench: Bench, *, run: int = 1) -> tuple[str, Kernel]:
    """Return the kernel that recomputes K and V, with its name. No server uses Pallas' yet: it is not in Kernels."""
    device = device_info()
    if not bench.sizes.pallas or device.compute_capability != HOPPER:
        return "XLA", partial(partial_recompute_ref, run=run)
    from pallas_kernels.gpu.partial_recompute import partial_recompute  # here: importing Mosaic takes time

    return "Hopper", partial(partial_recompute, run=run, num_ctas=device.num_cores)
