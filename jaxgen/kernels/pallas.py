"""Make the Pallas kernels of NVIDIA GPUs."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels.kernels import Kernel, Kernels, PackedProduct, QuantizedProduct
from jaxgen.kernels.references import (
    GPU_EXPERT_PRODUCT,
    GPU_FLOATS,
    GPU_QUANTIZED,
    REFERENCE_GPU,
    as_it_is,
    stored_rows,
)
from pallas_kernels.activations import gated_ref
from pallas_kernels.gated_delta import gated_delta_ref
from pallas_kernels.gpu.dense_support import num_parts
from pallas_kernels.gpu.dense_support import supports as dense_supports
from pallas_kernels.gpu.shared_memory import BLACKWELL_RTX, HOPPER
from pallas_kernels.norms import layer_norm_ref, rms_norm_ref
from pallas_kernels.partial_recompute import partial_recompute_ref
from pallas_kernels.plain_codes import COMPILER_OPTIONS


@cache
def hopper(num_ctas: int, registers: tuple[int, int] | None = None) -> Kernels:
    """Return Pallas kernels for NVIDIA GPUs of compute capability 9.0.

    ``num_ctas``: thread blocks of their persistent grids. ``registers``: how attention divides registers; None: as it
    does by default.
    """
    kernels = _pallas("Hopper", num_ctas, bulk=True, wgmma=True)
    if registers is None:
        return kernels
    return replace(kernels, ragged_paged_attention=partial(kernels.ragged_paged_attention, registers=registers))


@cache
def ampere(num_ctas: int) -> Kernels:
    """Return such kernels for compute capability 8, which Ampere and Ada have."""
    return _pallas("Ampere", num_ctas, bulk=False, wgmma=False)


@cache
def blackwell(num_ctas: int) -> Kernels:
    """Return such kernels for compute capability 10, data-centre Blackwell. They do not use its tensor memory."""
    return _pallas("Blackwell", num_ctas, bulk=True, wgmma=False)


@cache
def blackwell_rtx(num_ctas: int) -> Kernels:
    """Return such kernels for compute capability 12, whose shared memory is too small to copy blocks in bulk."""
    return _pallas("Blackwell RTX", num_ctas, bulk=True, wgmma=False, is_small=True)


def _pallas(name: str, num_ctas: int, *, bulk: bool, wgmma: bool, is_small: bool = False) -> Kernels:
    """Return Pallas kernels. ``is_small``: whether a thread block has the shared memory of Blackwell RTX."""
    from pallas_kernels.gpu import (
        copy_blocks,
        expert_product,
        expert_weights,
        gated_delta,
        norms,
        rotate_write,
        write_kv,
    )
    from pallas_kernels.gpu.attention import ragged_paged_attention  # here: importing Mosaic takes time

    def norm(kernel: Kernel, twin: Kernel | None = None) -> Any:
        return partial(kernel, num_ctas=num_ctas) if wgmma else twin

    def with_experts(product: QuantizedProduct) -> QuantizedProduct:
        of_experts = partial(expert_weights.coded_expert_product, num_ctas=num_ctas)
        return replace(product, pack_groups=expert_weights.groups_of_experts, expert_product=of_experts)

    options: dict[str, Any] = {"num_ctas": num_ctas, "bulk": bulk}
    copies = options | {"bulk": bulk and not is_small}
    kernels = Kernels(
        name,
        partial(ragged_paged_attention.ragged_paged_attention, **options, wgmma=wgmma),
        partial(write_kv.write_kv, **options, shared_memory=BLACKWELL_RTX if is_small else HOPPER),
        partial(ragged_paged_attention.plan_attention, num_ctas=num_ctas, wgmma=wgmma, in_kernel=wgmma),
        packed=_dense(num_ctas) if wgmma else None,
        rms_norm=norm(norms.rms_norm, rms_norm_ref),
        layer_norm=norm(norms.layer_norm, layer_norm_ref),
        add_rms_norm=norm(norms.add_rms_norm),
        add_layer_norm=norm(norms.add_layer_norm),
        rotate_write=partial(rotate_write.rotate_write, num_ctas=num_ctas) if wgmma else None,
        gather_blocks=partial(copy_blocks.gather_blocks, **copies),
        scatter_blocks=partial(copy_blocks.scatter_blocks, **copies),
        gated_delta=partial(gated_delta.gated_delta, num_ctas=num_ctas) if wgmma else gated_delta_ref,
        expert_product=partial(expert_product.expert_product, num_ctas=num_ctas) if wgmma else GPU_EXPERT_PRODUCT,
        quantized=with_experts(GPU_QUANTIZED) if wgmma else GPU_QUANTIZED,
        floats=with_experts(GPU_FLOATS) if wgmma else GPU_FLOATS,
        compiler_options=COMPILER_OPTIONS,
        partial_recompute=partial_recompute_ref,
        separate_layers=True,
        separate_sampling=True,
    )
    return kernels.compared_with(REFERENCE_GPU)


def _dense(num_ctas: int) -> PackedProduct:
    """Return products with stacks of weights as they are, whose sums have one order for each weight."""
    from pallas_kernels.gpu import dense_product as dense

    def gated_product(x: Any, weight: Any, layer: Any, num_tokens: Any, *, activation: str, dtype: Any) -> Any:
        _, outputs, inputs = weight.shape
        if dense_supports(inputs=inputs, outputs=outputs, dtype=weight.dtype.name, activation=activation) is None:
            options: dict[str, Any] = {"activation": activation, "dtype": dtype, "num_ctas": num_ctas}
            return dense.gated_product(x, weight, layer, num_tokens, **options)
        wide = dense.dense_product(x, weight, layer, num_tokens, num_ctas=num_ctas)
        return gated_ref(wide, num_tokens, activation=activation, dtype=dtype)

    def parts(x: Any, weight: Any, layer: Any, num_tokens: Any) -> Any:
        _, outputs, inputs = weight.shape
        if num_parts(inputs, outputs) == 1:
            return None  # then the product writes its sum with the residual, in fewer bytes
        return dense.product_parts(x, weight, layer, num_tokens, num_ctas=num_ctas)

    def takes(inputs: int, outputs: int, dtype: str) -> bool:
        return dense_supports(inputs=inputs, outputs=outputs, dtype=dtype) is None

    product = partial(dense.dense_product, num_ctas=num_ctas)
    return PackedProduct(as_it_is, product, stored_rows, None, gated_product, parts, takes)


_BY_MAJOR: dict[int, Callable[[int], Kernels]] = {8: ampere, 9: hopper, 10: blackwell, 12: blackwell_rtx}
"""Makers of kernels by the major number of the compute capability."""


def maker_of(device: DeviceInfo) -> Callable[[int], Kernels] | None:
    """Return the function that makes a GPU's Pallas kernels from the number of thread blocks, or None."""
    return None if device.compute_capability is None else _BY_MAJOR.get(device.compute_capability[0])
