"""Choose the kernels to check: those made for the device, even where a server would choose others."""

from dataclasses import dataclass, replace
from functools import cache, partial

from jaxgen.core.model_config import ModelConfig
from jaxgen.core.operations import ATTENTION, COPIES, ROTATION
from jaxgen.kernels.choice import for_cache_of, hopper, maker_of, reference
from jaxgen.kernels.gpu_support import troubles
from jaxgen.kernels.kernels import Kernel, Kernels
from jaxgen.runner.model_runner import device_info
from pallas_kernels.add_norm import add_rms_norm_ref
from pallas_kernels.dense_product import dense_product_ref, gated_product_ref
from pallas_kernels.partial_recompute import partial_recompute_ref
from scripts.gpu.result.plan import REGISTERS, Registers
from scripts.gpu.rows.bench import Bench, UnavailableError

BLOCK_SIZE = 64
HOPPER = (9, 0)


def kernels_for(bench: Bench, *, num_ctas: int | None = None, model: ModelConfig | None = None) -> Kernels:
    """Return Pallas kernels on grids of ``num_ctas`` thread blocks (None: one per multiprocessor), or else XLA's.

    A ``model`` whose KV cache has codes has XLA's operations where no kernel takes it, as in a server.
    """
    twins = reference(device_info())
    if not bench.sizes.pallas:
        return twins
    kernels = _kernels_for(bench.registers, num_ctas)
    if model is None or model.kv_dtype == "auto":
        return kernels
    found = troubles(device_info(), model, BLOCK_SIZE, kernels)
    lacking = {name: found[name] for name in (ATTENTION, COPIES, ROTATION) if name in found}
    return for_cache_of(model, kernels).without(lacking, twins)


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


@dataclass(frozen=True)
class DenseKernels:
    """Products with dense weights whose sums have one order, and a norm."""

    name: str
    product: Kernel
    gated: Kernel
    add_rms_norm: Kernel


def dense_kernels(bench: Bench) -> DenseKernels:
    """Return the kernels for Hopper, or in a dry run their twins. UnavailableError on other devices."""
    device = device_info()
    if not bench.sizes.pallas:
        return DenseKernels("XLA", dense_product_ref, gated_product_ref, add_rms_norm_ref)
    if device.compute_capability != HOPPER:
        raise UnavailableError("these kernels are for compute capability 9.0")
    from pallas_kernels.gpu.dense_product import dense_product, gated_product  # here: as above
    from pallas_kernels.gpu.norms import add_rms_norm

    kernels = (partial(kernel, num_ctas=device.num_cores) for kernel in (dense_product, gated_product, add_rms_norm))
    return DenseKernels("Hopper", *kernels)
