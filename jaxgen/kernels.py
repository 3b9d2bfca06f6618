"""Chooses each kernel, native or its ``_ref`` twin, once; the only module of jaxgen that imports pallas_kernels."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jaxgen.device_info import DeviceInfo
from pallas_kernels.cpu.build import Recipe, UnavailableError
from pallas_kernels.cpu.library import DTYPES, Library, load
from pallas_kernels.packed_product import pack, rows
from pallas_kernels.ragged_paged_attention import ragged_paged_attention_ref
from pallas_kernels.write_kv import write_kv_ref

logger = logging.getLogger(__name__)

Kernel = Callable[..., Any]


@dataclass(frozen=True)
class PackedProduct:
    """Products of weights that were packed once; see pallas_kernels.packed_product."""

    pack: Kernel
    product: Kernel
    rows: Kernel


@dataclass(frozen=True)
class Kernels:
    """What programs are built of, each with the signature of its ``_ref`` twin; equal ones make equal programs."""

    name: str
    ragged_paged_attention: Kernel
    write_kv: Kernel
    packed: PackedProduct | None = None
    """None: XLA's own products, of weights as they are."""


REFERENCE = Kernels("XLA", ragged_paged_attention_ref, write_kv_ref)
"""The twins in plain jnp, which run everywhere."""


_MATRIX_UNITS = "amx_bf16"
"""XLA multiplies bfloat16 on a CPU's matrix units, at about eight times the rate of its vector units."""


def native(library: Library) -> Kernels:
    """Those of a library for this machine's processor."""
    product = PackedProduct(pack, library.packed_product, rows)
    return Kernels("native", library.ragged_paged_attention, library.write_kv, product)


def native_dtypes(device: DeviceInfo) -> tuple[str, ...]:
    """The dtypes for which ``choose`` will make native kernels, going by what is installed."""
    try:
        Recipe.find()
    except UnavailableError:
        return ()
    return DTYPES if device.is_cpu else ()


def choose(device: DeviceInfo, dtype: str, directory: Path) -> Kernels:
    """The fastest kernels there are for a device and a model's dtype; says once in the log what they are, and why.

    On a CPU the native ones, compiled into ``directory`` if they are not there yet; products stay XLA's where it has
    matrix units for them, which the native ones do not use.
    """
    if not device.is_cpu or dtype not in DTYPES:
        logger.info("kernels: XLA (there are no others for %s on %s yet)", dtype, device.platform)
        return REFERENCE
    try:
        kernels = native(load(directory))
    except UnavailableError as error:
        logger.warning("kernels: XLA, which is slower, because there are no native ones: %s", error)
        return REFERENCE
    if dtype == "bfloat16" and _MATRIX_UNITS in device.features:
        logger.info("kernels: native, and XLA's products, for the CPU's matrix units (%s)", _MATRIX_UNITS)
        return replace(kernels, name="native attention", packed=None)
    logger.info("kernels: native")
    return kernels
