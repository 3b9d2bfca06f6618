"""Chooses each kernel, native or its ``_ref`` twin, once; the only module of jaxgen that imports pallas_kernels."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pallas_kernels.cpu.build import UnavailableError
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


def native(library: Library) -> Kernels:
    """Those of a library for this machine's processor."""
    product = PackedProduct(pack, library.packed_product, rows)
    return Kernels("native", library.ragged_paged_attention, library.write_kv, product)


def choose(platform: str, dtype: str, directory: Path) -> Kernels:
    """The fastest kernels there are for a device and a model's dtype; says once in the log what they are, and why.

    On a CPU the native ones, compiled into ``directory`` if they are not there yet.
    """
    if platform != "cpu" or dtype not in DTYPES:
        logger.info("kernels: XLA (there are no others for %s on %s yet)", dtype, platform)
        return REFERENCE
    try:
        library = load(directory)
    except UnavailableError as error:
        logger.warning("kernels: XLA, which is slower, because there are no native ones: %s", error)
        return REFERENCE
    logger.info("kernels: native")
    return native(library)
