"""Chooses each kernel, native or its ``_ref`` twin, once; the only module of jaxgen that imports pallas_kernels."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from jaxgen.config import ModelConfig
from jaxgen.device_info import DeviceInfo
from pallas_kernels.copy_blocks import gather_blocks_ref, scatter_blocks_ref
from pallas_kernels.cpu.build import Recipe, UnavailableError
from pallas_kernels.cpu.library import DTYPES, Library, load
from pallas_kernels.gated_silu import gated_silu_ref
from pallas_kernels.norms import layer_norm_ref, rms_norm_ref
from pallas_kernels.packed_product import pack, rows
from pallas_kernels.partial_recompute import partial_recompute_ref
from pallas_kernels.proof import prove_cache_kernels, prove_copies
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
    plan_attention: Kernel | None = None
    """What ``ragged_paged_attention`` takes as ``plan``, the same in every layer; None: it takes none."""
    packed: PackedProduct | None = None
    """None: XLA's own products, of weights as they are."""
    rms_norm: Kernel = rms_norm_ref
    layer_norm: Kernel = layer_norm_ref
    gated_silu: Kernel = gated_silu_ref
    gather_blocks: Kernel = gather_blocks_ref
    scatter_blocks: Kernel = scatter_blocks_ref
    partial_recompute: Kernel | None = None
    """None: K and V are rebuilt by the products of the step, queries and all, which on a CPU gives their bits."""
    separate_layers: bool = False
    """The program has the layers one after another, and their matrices are arrays of their own."""

    @property
    def skips_padding(self) -> bool:
        """Whether rows of padding are left out of products, so that a step costs about what its tokens do."""
        return self.packed is not None


REFERENCE = Kernels("XLA", ragged_paged_attention_ref, write_kv_ref)
"""The twins in plain jnp, which run everywhere."""
REFERENCE_GPU = replace(REFERENCE, separate_layers=True, partial_recompute=partial_recompute_ref)
"""The same in a program for GPUs, where each weight of a scanned stack would be copied before it is read."""


_HOPPER = (9, 0)
_AMPERE = 8
"""The major number, which Ada has too."""
_MATRIX_UNITS = "amx_bf16"
"""XLA multiplies bfloat16 on a CPU's matrix units, at about eight times the rate of its vector units."""


def reference(device: DeviceInfo) -> Kernels:
    """The twins, for programs of a device."""
    return REFERENCE if device.is_cpu else REFERENCE_GPU


def native(library: Library) -> Kernels:
    """Those of a library for this machine's processor."""
    product = PackedProduct(pack, library.packed_product, rows)
    return Kernels(
        "native",
        library.ragged_paged_attention,
        library.write_kv,
        packed=product,
        rms_norm=library.rms_norm,
        layer_norm=library.layer_norm,
        gated_silu=library.gated_silu,
    )


def native_dtypes(device: DeviceInfo) -> tuple[str, ...]:
    """The dtypes for which ``choose`` will make native kernels, going by what is installed."""
    try:
        Recipe.find()
    except UnavailableError:
        return ()
    return DTYPES if device.is_cpu else ()


@cache
def hopper(num_ctas: int, registers: tuple[int, int] | None = None) -> Kernels:
    """Pallas kernels for NVIDIA GPUs of compute capability 9.0, on persistent grids of ``num_ctas`` thread blocks.
    ``registers``: how attention shares them out, if not as it does by default."""
    kernels = _pallas("Hopper", num_ctas, bulk=True)
    if registers is None:
        return kernels
    return replace(kernels, ragged_paged_attention=partial(kernels.ragged_paged_attention, registers=registers))


@cache
def ampere(num_ctas: int) -> Kernels:
    """The same for compute capability 8, which Ampere and Ada have."""
    return _pallas("Ampere", num_ctas, bulk=False)


def _pallas(name: str, num_ctas: int, *, bulk: bool) -> Kernels:
    from pallas_kernels.gpu import copy_blocks, ragged_paged_attention, write_kv  # here: importing Mosaic takes time

    options: dict[str, Any] = {"num_ctas": num_ctas, "bulk": bulk}
    return Kernels(
        name,
        partial(ragged_paged_attention.ragged_paged_attention, **options),
        partial(write_kv.write_kv, **options),
        partial(ragged_paged_attention.plan_attention, **options),
        gather_blocks=partial(copy_blocks.gather_blocks, **options),
        scatter_blocks=partial(copy_blocks.scatter_blocks, **options),
        partial_recompute=partial_recompute_ref,
        separate_layers=True,
    )


def choose(device: DeviceInfo, model: ModelConfig, block_size: int, directory: Path) -> Kernels:
    """The fastest kernels there are for a device and a model; says once in the log what they are, and why.

    On a CPU the native ones, compiled into ``directory`` if they are not there yet; products stay XLA's where it has
    matrix units for them, which the native ones do not use. On Ampere, Ada and Hopper GPUs Pallas kernels, if they
    prove right there.
    """
    kernels, reason = (
        _choose_native(device, model, directory) if device.is_cpu else _choose_gpu(device, model, block_size)
    )
    logger.log(
        logging.WARNING if kernels.name == REFERENCE.name else logging.INFO, "kernels: %s%s", kernels.name, reason
    )
    return kernels


def _choose_native(device: DeviceInfo, model: ModelConfig, directory: Path) -> tuple[Kernels, str]:
    if model.dtype not in DTYPES:
        return REFERENCE, f", which is slower, because there are no native ones for {model.dtype}"
    try:
        kernels = native(load(directory))
    except UnavailableError as error:
        return REFERENCE, f", which is slower, because there are no native ones: {error}"
    if model.dtype == "bfloat16" and _MATRIX_UNITS in device.features:
        return replace(kernels, name="native attention", packed=None), f", XLA's products, which use {_MATRIX_UNITS}"
    return kernels, ""


def _choose_gpu(device: DeviceInfo, model: ModelConfig, block_size: int) -> tuple[Kernels, str]:
    on_hopper = device.compute_capability == _HOPPER
    if not on_hopper and (device.compute_capability or (0, 0))[0] != _AMPERE:
        return REFERENCE_GPU, f", because there are no others for {device.kind} yet"
    from pallas_kernels.gpu.ragged_paged_attention import supports

    shape: dict[str, Any] = {"heads": model.num_heads, "kv_heads": model.num_kv_heads, "head_dim": model.head_dim}
    reason = supports(**shape, block_size=block_size, dtype=model.dtype, bulk=on_hopper)
    if reason is not None:
        return REFERENCE_GPU, f", which is slower, because {reason}"
    kernels = (hopper if on_hopper else ampere)(device.num_cores)
    attention, write_kv = kernels.ragged_paged_attention, kernels.write_kv
    try:
        prove_cache_kernels(write_kv, attention, **shape, block_size=block_size, dtype=model.dtype, blank=0.0)
        prove_copies(
            kernels.gather_blocks,
            kernels.scatter_blocks,
            kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            block_size=block_size,
            dtype=model.dtype,
        )
    except Exception as error:  # whatever a compiler or a device raises: the reference remains
        return REFERENCE_GPU, f", which is slower, because the others failed their proof on this device: {error!r}"
    return kernels, ""
