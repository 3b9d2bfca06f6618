"""Make the Pallas kernels of NVIDIA GPUs."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

from jaxgen.core.quantization import WeightFormat
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels.code_support import code_trouble, experts_code_trouble
from jaxgen.kernels.kernels import EXPERTS_AXES, Kernel, Kernels, PackedProduct, QuantizedProduct
from jaxgen.kernels.proving.layer_shapes import ProductShape
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
        gated_delta,
        norms,
        rotate_write,
        write_kv,
    )
    from pallas_kernels.gpu.attention import ragged_paged_attention  # here: importing Mosaic takes time

    def norm(kernel: Kernel, twin: Kernel | None = None) -> Any:
        return partial(kernel, num_ctas=num_ctas) if wgmma else twin

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
        quantized=_coded(GPU_QUANTIZED, num_ctas) if wgmma else GPU_QUANTIZED,
        floats=_coded(GPU_FLOATS, num_ctas) if wgmma else GPU_FLOATS,
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


def _coded(plain: QuantizedProduct, num_ctas: int) -> QuantizedProduct:
    """Return products with codes as they are, and the ``plain`` ones for the weights that these do not take."""
    from pallas_kernels.gpu import coded_weights as coded

    def gated_product(
        x: Any, weight: Any, layer: Any, num_tokens: Any, *, group: int, activation: str, dtype: Any
    ) -> Any:
        _, outputs, inputs = weight.codes.shape
        sizes: dict[str, Any] = {"inputs": inputs, "outputs": outputs, "dtype": x.dtype.name}
        given = x, weight, layer, num_tokens
        if dense_supports(**sizes, codes=weight.codes.dtype.name, activation=activation) is None:
            options: dict[str, Any] = {"activation": activation, "dtype": dtype, "num_ctas": num_ctas}
            return coded.coded_gated_product(*given, group=group, **options)
        wide = coded.coded_product(*given, bits=plain.bits[-1], group=group, out_features=outputs, num_ctas=num_ctas)
        return gated_ref(wide, num_tokens, activation=activation, dtype=dtype)

    def parts(x: Any, weight: Any, layer: Any, num_tokens: Any, *, group: int) -> Any:
        _, outputs, inputs = weight.codes.shape
        if num_parts(inputs, outputs) == 1:
            return None
        return coded.coded_parts(x, weight, layer, num_tokens, group=group, num_ctas=num_ctas)

    return replace(
        plain,
        pack_groups=coded.groups_first,
        product=partial(coded.coded_product, num_ctas=num_ctas),
        rows=coded.coded_rows,
        expert_product=partial(coded.coded_expert_product, num_ctas=num_ctas),
        gated_product=gated_product,
        product_parts=parts,
        reads_stacks=True,
        takes=_takes,
        otherwise=plain,
    )


def _takes(form: WeightFormat, shape: tuple[int, ...], dtype: str, fp8_inputs: bool) -> bool:
    *_, outputs, inputs = shape
    if len(shape) == EXPERTS_AXES:
        return experts_code_trouble(form, inputs, outputs, dtype) is None
    return code_trouble(ProductShape(inputs, outputs, form=form), dtype, fp8_inputs=fp8_inputs) is None


_BY_MAJOR: dict[int, Callable[[int], Kernels]] = {8: ampere, 9: hopper, 10: blackwell, 12: blackwell_rtx}
"""Makers of kernels by the major number of the compute capability."""


def maker_of(device: DeviceInfo) -> Callable[[int], Kernels] | None:
    """Return the function that makes a GPU's Pallas kernels from the number of thread blocks, or None."""
    return None if device.compute_capability is None else _BY_MAJOR.get(device.compute_capability[0])
