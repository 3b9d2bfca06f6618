"""Choose each kernel, native or its ``_ref`` twin, once."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from jaxgen.core.config import ModelConfig
from jaxgen.core.quantization import PLAIN_BITS
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.hardware.nvidia import compiler_trouble
from jaxgen.kernels.expert_support import expert_trouble
from jaxgen.kernels.kernels import Kernels, PackedProduct, QuantizedProduct
from jaxgen.kernels.native_support import MATRIX_UNITS, native_parts, uses_matrix_units
from jaxgen.kernels.proving.verdict import ExpertShapes, Verdict
from jaxgen.terminal.progress import show_progress
from pallas_kernels.cpu.build import UnavailableError
from pallas_kernels.cpu.library import DTYPES, Library
from pallas_kernels.cpu.loading import load
from pallas_kernels.expert_product import GPU_TILE_ROWS, expert_product_ref
from pallas_kernels.fp8_inputs import fp8_inputs as fp8_inputs
from pallas_kernels.gpu.shared_memory import BLACKWELL_RTX, HOPPER
from pallas_kernels.kv_codes import CODE_DTYPES as CODE_DTYPES
from pallas_kernels.kv_codes import row_width as row_width
from pallas_kernels.norms import row_sum as row_sum
from pallas_kernels.packed_product import pack, rows
from pallas_kernels.partial_recompute import partial_recompute_ref
from pallas_kernels.plain_codes import (
    COMPILER_OPTIONS,
    plain_codes,
    plain_expert_product,
    plain_groups,
    plain_product,
    plain_rows,
)
from pallas_kernels.quantized_product import GroupedCodes as GroupedCodes
from pallas_kernels.quantized_product import pack_codes, pack_groups, quantized_rows
from pallas_kernels.ragged_paged_attention import GPU_PIECE_TOKENS, GPU_TILE_GROUP, ragged_paged_attention_ref
from pallas_kernels.rotary import Angles as Angles
from pallas_kernels.write_kv import write_kv_ref

logger = logging.getLogger(__name__)

REFERENCE = Kernels("XLA", ragged_paged_attention_ref, write_kv_ref)
"""The ``_ref`` twins in plain jnp, which run on all devices."""
GPU_EXPERT_PRODUCT = partial(expert_product_ref, tile_rows=GPU_TILE_ROWS)
"""XLA's loop over tiles of rows."""


def _plain(*, floats: bool) -> QuantizedProduct:
    """Return products in which XLA reads the codes themselves; ``floats``: these are numbers."""
    return QuantizedProduct(
        *(partial(plain_codes, floats=floats), plain_groups, plain_product, plain_rows, plain_expert_product),
        bits=PLAIN_BITS,
    )


_GPU_QUANTIZED, _GPU_FLOATS = _plain(floats=False), _plain(floats=True)
REFERENCE_GPU = replace(
    REFERENCE,
    ragged_paged_attention=partial(
        ragged_paged_attention_ref, piece_tokens=GPU_PIECE_TOKENS, tile_group=GPU_TILE_GROUP
    ),
    expert_product=GPU_EXPERT_PRODUCT,
    quantized=_GPU_QUANTIZED,
    floats=_GPU_FLOATS,
    compiler_options=COMPILER_OPTIONS,
    separate_layers=True,
    separate_sampling=True,
    partial_recompute=partial_recompute_ref,
)
"""The twins in a program for GPUs, without a scanned stack and without loops.

On a GPU each weight of a scanned stack would be copied before it is read, and the host would wait for the device in
each iteration of a loop.
"""


def reference(device: DeviceInfo) -> Kernels:
    """Return the ``_ref`` twins for programs of a device."""
    return REFERENCE if device.is_cpu else REFERENCE_GPU


def native(library: Library) -> Kernels:
    """Return the kernels of libraries that were compiled for this machine's processor."""
    product = PackedProduct(pack, library.packed_product, rows, library.expert_product)
    quantized = QuantizedProduct(
        *(pack_codes, pack_groups, library.quantized_product, quantized_rows, library.quantized_expert_product)
    )
    return Kernels(
        "native",
        library.ragged_paged_attention,
        library.write_kv,
        packed=product,
        quantized=quantized,
        rms_norm=library.rms_norm,
        layer_norm=library.layer_norm,
        activate=library.activate,
        gated=library.gated,
        rotated_heads=library.rotated_heads,
        zeros=library.zeros,
        build=(("library", library.code), ("compiler", library.compiler)),
    )


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
    from pallas_kernels.gpu import copy_blocks, expert_product, expert_weights, write_kv
    from pallas_kernels.gpu.attention import ragged_paged_attention  # here: importing Mosaic takes time

    def with_experts(product: QuantizedProduct) -> QuantizedProduct:
        of_experts = partial(expert_weights.coded_expert_product, num_ctas=num_ctas)
        return replace(product, pack_groups=expert_weights.groups_of_experts, expert_product=of_experts)

    options: dict[str, Any] = {"num_ctas": num_ctas, "bulk": bulk}
    copies = options | {"bulk": bulk and not is_small}
    return Kernels(
        name,
        partial(ragged_paged_attention.ragged_paged_attention, **options, wgmma=wgmma),
        partial(write_kv.write_kv, **options, shared_memory=BLACKWELL_RTX if is_small else HOPPER),
        partial(ragged_paged_attention.plan_attention, num_ctas=num_ctas, wgmma=wgmma),
        gather_blocks=partial(copy_blocks.gather_blocks, **copies),
        scatter_blocks=partial(copy_blocks.scatter_blocks, **copies),
        expert_product=partial(expert_product.expert_product, num_ctas=num_ctas) if wgmma else GPU_EXPERT_PRODUCT,
        quantized=with_experts(_GPU_QUANTIZED) if wgmma else _GPU_QUANTIZED,
        floats=with_experts(_GPU_FLOATS) if wgmma else _GPU_FLOATS,
        compiler_options=COMPILER_OPTIONS,
        partial_recompute=partial_recompute_ref,
        separate_layers=True,
        separate_sampling=True,
    )


_BY_MAJOR: dict[int, Callable[[int], Kernels]] = {8: ampere, 9: hopper, 10: blackwell, 12: blackwell_rtx}
"""Makers of kernels by the major number of the compute capability."""


def maker_of(device: DeviceInfo) -> Callable[[int], Kernels] | None:
    """Return the function that makes a GPU's Pallas kernels from the number of thread blocks, or None."""
    return None if device.compute_capability is None else _BY_MAJOR.get(device.compute_capability[0])


def choose(
    device: DeviceInfo,
    model: ModelConfig,
    block_size: int,
    directory: Path,
    verdict: Verdict | None = None,
    *,
    progress: bool = False,
) -> Kernels:
    """Return the fastest kernels for a device and a model, and log once which they are, and why.

    On a CPU these are the native kernels, compiled into ``directory`` if they are not there yet. Products stay XLA's if
    it uses matrix units for them, which the native ones do not. On GPUs these are the kernels ``made_for`` the device,
    if the ``verdict`` of their proof is right. ``progress``: whether a bar may show that they compile.
    """
    if device.is_cpu:
        kernels = _choose_native(device, model, directory, progress)
    else:
        kernels = _choose_gpu(device, model, block_size, verdict)
    slow = kernels.name == REFERENCE.name
    logger.log(
        logging.WARNING if slow else logging.INFO,
        "kernels: %s%s%s",
        kernels.name,
        ", which is slower, because " if slow else ", " if kernels.reason else "",
        kernels.reason,
    )
    return kernels


def _choose_native(device: DeviceInfo, model: ModelConfig, directory: Path, progress: bool) -> Kernels:
    if model.dtype not in DTYPES:
        return replace(REFERENCE, reason=f"there are no native ones for {model.dtype}")
    try:
        parts, watch = native_parts(model), partial(_watch, bar=progress)
        kernels = native(load(directory, parts=parts, threads=device.num_cores, watch=watch))
    except UnavailableError as error:
        return replace(REFERENCE, reason=f"there are no native ones: {error}")
    if uses_matrix_units(device, model):
        reason = f"XLA's products, which use {MATRIX_UNITS}"
        return replace(kernels, name="native attention", packed=None, reason=reason)
    return kernels


def _watch(steps: int, *, bar: bool) -> AbstractContextManager[Callable[[int], object]]:
    return show_progress("compiling and proving the native kernels", steps, "step", bar=bar)


def _choose_gpu(device: DeviceInfo, model: ModelConfig, block_size: int, verdict: Verdict | None) -> Kernels:
    kernels, reason = made_for(device, model, block_size)
    if kernels is None:
        return replace(REFERENCE_GPU, reason=reason)
    if verdict is None or not verdict.is_right:
        reason = verdict.reason if verdict is not None else "nothing has proven the others"
        return replace(REFERENCE_GPU, reason=f"of the {kernels.name} kernels {reason}")
    return _with_loops(kernels, verdict.experts) if verdict.experts else kernels


def made_for(device: DeviceInfo, model: ModelConfig, block_size: int) -> tuple[Kernels | None, str]:
    """Return the Pallas kernels for a GPU and a model, unproven, or None and the reason why there are none."""
    make = maker_of(device)
    if make is None:
        return None, f"there are no others for {device.kind} yet"
    if model.kv_dtype != "auto":
        return None, f"no others read a KV cache of {model.kv_dtype}"
    from pallas_kernels.gpu import write_kv
    from pallas_kernels.gpu.attention.ragged_paged_attention import supports

    kernels = make(device.num_cores)
    shape: dict[str, Any] = {"kv_heads": model.num_kv_heads, "head_dim": model.head_dim, "dtype": model.dtype}
    memory = BLACKWELL_RTX if make is blackwell_rtx else HOPPER
    reason = (
        supports(**shape, heads=model.num_heads, block_size=block_size, wgmma=make is hopper)
        or write_kv.supports(**shape, bulk=make is not ampere, shared_memory=memory)
        or compiler_trouble()
    )
    return (_for_experts(kernels, model), "") if reason is None else (None, reason)


def _for_experts(kernels: Kernels, model: ModelConfig) -> Kernels:
    """Return the kernels, with XLA's loop and the reason why if their product does not take the model's experts."""
    shapes = ExpertShapes.of(model)
    if shapes is None:
        return kernels
    if kernels.expert_product is GPU_EXPERT_PRODUCT:
        reason: str | None = "the others are for Hopper"
    else:
        reason = expert_trouble(shapes, model, kernels.placed)
    return kernels if reason is None else _with_loops(kernels, reason)


def _with_loops(kernels: Kernels, reason: str) -> Kernels:
    """Return the kernels with XLA's products of experts, and the reason why."""
    loops: dict[str, Any] = {"expert_product": GPU_EXPERT_PRODUCT, "quantized": _GPU_QUANTIZED, "floats": _GPU_FLOATS}
    return replace(kernels, **loops, reason=f"XLA's loop over tiles for experts: {reason}")


def for_windows_as_data(kernels: Kernels, windows: Sequence[int | None]) -> Kernels:
    """Return the kernels for a program that all layers share, in which a layer's window is data if windows differ.

    These are the kernels themselves, unless their attention is planned for a window. Then they are the twins, with the
    products of the kernels, since parameters have the layout that these read.
    """
    if kernels.plan_attention is None or len(set(windows)) <= 1:
        return kernels
    reason = (
        f"the attention of the {kernels.name} kernels takes one window for all layers, where the cache is in host "
        "memory, and this model's layers have several"
    )
    products = {name: getattr(kernels, name) for name in ("expert_product", "quantized", "floats")}
    return replace(REFERENCE_GPU, **products, reason=reason)
