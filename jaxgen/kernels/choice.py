"""Choose each kernel, native or its ``_ref`` twin, once."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

from jaxgen.core.model_config import ModelConfig
from jaxgen.core.operations import (
    ACTIVATIONS,
    ATTENTION,
    CODES,
    DELTA_NETS,
    EXPERTS,
    OPERATIONS,
    PRODUCTS,
    Choice,
)
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels.gpu_support import troubles, xlas_codes
from jaxgen.kernels.kernels import Kernels, PackedProduct, QuantizedProduct
from jaxgen.kernels.native_support import MATRIX_UNITS, delta_trouble, native_parts, uses_matrix_units
from jaxgen.kernels.padding import activates_in_products, computed_for_padding
from jaxgen.kernels.pallas import ampere as ampere
from jaxgen.kernels.pallas import blackwell as blackwell
from jaxgen.kernels.pallas import blackwell_rtx as blackwell_rtx
from jaxgen.kernels.pallas import hopper as hopper
from jaxgen.kernels.pallas import maker_of as maker_of
from jaxgen.kernels.proving.verdict import NOTHING_PROVEN, Verdict, operations_of
from jaxgen.kernels.references import GPU_EXPERT_PRODUCT as GPU_EXPERT_PRODUCT
from jaxgen.kernels.references import REFERENCE as REFERENCE
from jaxgen.kernels.references import REFERENCE_GPU as REFERENCE_GPU
from jaxgen.kernels.references import reference as reference
from jaxgen.terminal.progress import show_progress
from pallas_kernels.cpu.build import UnavailableError
from pallas_kernels.cpu.library import DTYPES, Library
from pallas_kernels.cpu.loading import load
from pallas_kernels.fp8_inputs import fp8_inputs as fp8_inputs
from pallas_kernels.gated_delta import DeltaState as DeltaState
from pallas_kernels.kv_codes import CODE_DTYPES as CODE_DTYPES
from pallas_kernels.kv_codes import row_width as row_width
from pallas_kernels.norms import row_sum as row_sum
from pallas_kernels.packed_product import pack, rows
from pallas_kernels.quantized_product import GroupedCodes as GroupedCodes
from pallas_kernels.quantized_product import pack_codes, pack_groups, quantized_rows
from pallas_kernels.rotary import Angles as Angles

logger = logging.getLogger(__name__)


def native(library: Library) -> Kernels:
    """Return the kernels of libraries that were compiled for this machine's processor."""
    product = PackedProduct(pack, library.packed_product, rows, library.expert_product)
    quantized = QuantizedProduct(
        *(pack_codes, pack_groups, library.quantized_product, quantized_rows, library.quantized_expert_product)
    )
    kernels = Kernels(
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
        short_convolution=library.short_convolution,
        gated_delta=library.gated_delta,
        zeros=library.zeros,
        build=(("library", library.code), ("compiler", library.compiler)),
    )
    kernels = kernels.compared_with(REFERENCE)
    return replace(kernels, choices={**kernels.choices, EXPERTS: kernels.choices[PRODUCTS]})  # of packed weights


def choose(
    device: DeviceInfo,
    model: ModelConfig,
    block_size: int,
    directory: Path,
    verdict: Verdict = NOTHING_PROVEN,
    *,
    progress: bool = False,
) -> Kernels:
    """Return the fastest kernels of each operation for a device and a model, and log once which they are, and why.

    On a CPU these are the native kernels, compiled into ``directory`` if they are not there yet. Products stay XLA's if
    it uses matrix units for them, which the native ones do not. On GPUs these are the kernels ``made_for`` the device
    that the ``verdict`` of their proof finds right, and XLA's for other operations. ``progress``: whether a bar may
    show that they compile.
    """
    if device.is_cpu:
        kernels = _choose_native(device, model, directory, progress)
    else:
        kernels = proven(device, model, block_size, verdict)
    unused = set(OPERATIONS) - set(operations_of(model))
    kernels = replace(kernels, choices={name: one for name, one in kernels.choices.items() if name not in unused})
    _log(kernels, verdict)
    return kernels


def _log(kernels: Kernels, verdict: Verdict) -> None:
    slow = ATTENTION not in kernels.own
    others = [name for name in kernels.choices if name not in kernels.own] if kernels.own else []
    logger.log(
        logging.WARNING if slow else logging.INFO,
        "kernels: %s%s%s%s",
        kernels.name,
        f", and XLA's for {', '.join(others)}" if others else "",
        ", which is slower, because " if slow else ", because " if kernels.reason else "",
        kernels.reason,
    )
    for name, measured in verdict.measured(kernels.own):
        logger.info("kernels: %s take %s", name, measured)


def _choose_native(device: DeviceInfo, model: ModelConfig, directory: Path, progress: bool) -> Kernels:
    if model.dtype not in DTYPES:
        return _without_any(REFERENCE, f"there are no native ones for {model.dtype}")
    try:
        parts, watch = native_parts(model), partial(_watch, bar=progress)
        kernels = native(load(directory, parts=parts, threads=device.num_cores, watch=watch))
    except UnavailableError as error:
        return _without_any(REFERENCE, f"there are no native ones: {error}")
    if trouble := delta_trouble(model):
        kernels = kernels.without({DELTA_NETS: trouble}, REFERENCE)
    if uses_matrix_units(device, model):
        reason = f"XLA's use {MATRIX_UNITS}"
        return replace(kernels.without(dict.fromkeys((PRODUCTS, EXPERTS), reason), REFERENCE), name="native attention")
    return kernels


def _without_any(twins: Kernels, reason: str) -> Kernels:
    return twins.without(dict.fromkeys(OPERATIONS, reason), twins)


def _watch(steps: int, *, bar: bool) -> AbstractContextManager[Callable[[int], object]]:
    return show_progress("compiling and proving the native kernels", steps, "step", bar=bar)


def made_for(device: DeviceInfo, model: ModelConfig, block_size: int) -> Kernels:
    """Return the kernels for a GPU and a model, unproven: Pallas kernels for the operations that they do."""
    make = maker_of(device)
    if make is None:
        return _without_any(REFERENCE_GPU, f"there are no others for {device.kind} yet")
    kernels = for_cache_of(model, make(device.num_cores))
    kernels = kernels.without(troubles(device, model, block_size, kernels), REFERENCE_GPU)
    if CODES not in kernels.own:
        return kernels
    return replace(kernels, choices={**kernels.choices, CODES: Choice(kernels.name, xlas_codes(model))})


def for_cache_of(model: ModelConfig, kernels: Kernels) -> Kernels:
    """Return a GPU's kernels for the model's cache, whose scales they have apart if it has codes."""
    coded = model.kv_dtype != "auto" and ATTENTION in kernels.own
    return replace(kernels, scales_apart=True) if coded else kernels


def proven(device: DeviceInfo, model: ModelConfig, block_size: int, verdict: Verdict) -> Kernels:
    """Return the kernels for a GPU and a model that the ``verdict`` of their proof finds right, and XLA's for other
    operations."""
    kernels = made_for(device, model, block_size)
    kernels = kernels.without(verdict.refused(kernels.own), REFERENCE_GPU)
    choices = dict(kernels.choices)
    if PRODUCTS in kernels.own and activates_in_products(model):
        choices[ACTIVATIONS] = choices[PRODUCTS]
    return replace(kernels, choices=choices, padded=computed_for_padding(model))


def for_windows_as_data(kernels: Kernels, windows: Sequence[int | None]) -> Kernels:
    """Return the kernels for a program that all layers share, in which a layer's window is data if windows differ.

    These are the kernels themselves, unless their attention is planned for a window. Then attention is XLA's.
    """
    if kernels.plan_attention is None or len(set(windows)) <= 1:
        return kernels
    reason = (
        f"the attention of the {kernels.name} kernels takes one window for all layers, where the cache is in host "
        "memory, and this model's layers have several"
    )
    return kernels.without({ATTENTION: reason}, REFERENCE_GPU)
