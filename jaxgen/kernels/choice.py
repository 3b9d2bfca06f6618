"""Chooses each kernel, native or its ``_ref`` twin, once; the only module of jaxgen that imports pallas_kernels."""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from jaxgen.core.config import ModelConfig
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.hardware.nvidia import compiler_trouble
from jaxgen.kernels.verdict import Verdict
from pallas_kernels import proof
from pallas_kernels.copy_blocks import gather_blocks_ref, scatter_blocks_ref
from pallas_kernels.cpu.build import Recipe, UnavailableError
from pallas_kernels.cpu.library import DTYPES, Library, load
from pallas_kernels.gated_silu import gated_silu_ref
from pallas_kernels.norms import layer_norm_ref, rms_norm_ref
from pallas_kernels.packed_product import pack, rows
from pallas_kernels.partial_recompute import partial_recompute_ref
from pallas_kernels.ragged_paged_attention import GPU_PIECE_TOKENS, GPU_TILE_GROUP, ragged_paged_attention_ref
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
    reason: str = field(default="", compare=False)
    """Why these and no faster ones, for the log and metrics; empty: they are the fastest."""

    @property
    def skips_padding(self) -> bool:
        """Whether rows of padding are left out of products, so that a step costs about what its tokens do."""
        return self.packed is not None


REFERENCE = Kernels("XLA", ragged_paged_attention_ref, write_kv_ref)
"""The twins in plain jnp, which run everywhere."""
REFERENCE_GPU = replace(
    REFERENCE,
    ragged_paged_attention=partial(
        ragged_paged_attention_ref, piece_tokens=GPU_PIECE_TOKENS, tile_group=GPU_TILE_GROUP
    ),
    separate_layers=True,
    partial_recompute=partial_recompute_ref,
)
"""The same in a program for GPUs, where each weight of a scanned stack would be copied before it is read, and where the
host waits for the device at every turn of a loop."""


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
    kernels = _pallas("Hopper", num_ctas, bulk=True, wgmma=True)
    if registers is None:
        return kernels
    return replace(kernels, ragged_paged_attention=partial(kernels.ragged_paged_attention, registers=registers))


@cache
def ampere(num_ctas: int) -> Kernels:
    """The same for compute capability 8, which Ampere and Ada have."""
    return _pallas("Ampere", num_ctas, bulk=False, wgmma=False)


@cache
def blackwell(num_ctas: int) -> Kernels:
    """The same for compute capability 10: with what data-centre Blackwell shares with others, so without its tensor
    memory."""
    return _pallas("Blackwell", num_ctas, bulk=True, wgmma=False)


@cache
def blackwell_rtx(num_ctas: int) -> Kernels:
    """The same for compute capability 12, whose shared memory is too small for copies of blocks in bulk."""
    return _pallas("Blackwell RTX", num_ctas, bulk=True, wgmma=False, bulk_copies=False)


def _pallas(name: str, num_ctas: int, *, bulk: bool, wgmma: bool, bulk_copies: bool | None = None) -> Kernels:
    from pallas_kernels.gpu import copy_blocks, write_kv
    from pallas_kernels.gpu.attention import ragged_paged_attention  # here: importing Mosaic takes time

    options: dict[str, Any] = {"num_ctas": num_ctas, "bulk": bulk}
    copies = options | {"bulk": bulk if bulk_copies is None else bulk_copies}
    return Kernels(
        name,
        partial(ragged_paged_attention.ragged_paged_attention, **options, wgmma=wgmma),
        partial(write_kv.write_kv, **options),
        partial(ragged_paged_attention.plan_attention, num_ctas=num_ctas, wgmma=wgmma),
        gather_blocks=partial(copy_blocks.gather_blocks, **copies),
        scatter_blocks=partial(copy_blocks.scatter_blocks, **copies),
        partial_recompute=partial_recompute_ref,
        separate_layers=True,
    )


_BY_MAJOR: dict[int, Callable[[int], Kernels]] = {8: ampere, 9: hopper, 10: blackwell, 12: blackwell_rtx}
"""By the major number of the compute capability."""


def maker_of(device: DeviceInfo) -> Callable[[int], Kernels] | None:
    """Return the function that makes a GPU's Pallas kernels from the number of thread blocks, or None."""
    return None if device.compute_capability is None else _BY_MAJOR.get(device.compute_capability[0])


def choose(
    device: DeviceInfo, model: ModelConfig, block_size: int, directory: Path, verdict: Verdict | None = None
) -> Kernels:
    """The fastest kernels there are for a device and a model; says once in the log what they are, and why.

    On a CPU the native ones, compiled into ``directory`` if they are not there yet; products stay XLA's where it has
    matrix units for them, which the native ones do not use. On GPUs those that are ``made_for`` it, if the ``verdict``
    of their proof is that they are right there.
    """
    kernels = (
        _choose_native(device, model, directory) if device.is_cpu else _choose_gpu(device, model, block_size, verdict)
    )
    slow = kernels.name == REFERENCE.name
    logger.log(
        logging.WARNING if slow else logging.INFO,
        "kernels: %s%s%s",
        kernels.name,
        ", which is slower, because " if slow else ", " if kernels.reason else "",
        kernels.reason,
    )
    return kernels


def _choose_native(device: DeviceInfo, model: ModelConfig, directory: Path) -> Kernels:
    if model.dtype not in DTYPES:
        return replace(REFERENCE, reason=f"there are no native ones for {model.dtype}")
    try:
        kernels = native(load(directory))
    except UnavailableError as error:
        return replace(REFERENCE, reason=f"there are no native ones: {error}")
    if model.dtype == "bfloat16" and _MATRIX_UNITS in device.features:
        reason = f"XLA's products, which use {_MATRIX_UNITS}"
        return replace(kernels, name="native attention", packed=None, reason=reason)
    return kernels


def _choose_gpu(device: DeviceInfo, model: ModelConfig, block_size: int, verdict: Verdict | None) -> Kernels:
    kernels, reason = made_for(device, model, block_size)
    if kernels is None:
        return replace(REFERENCE_GPU, reason=reason)
    if verdict is None or not verdict.is_right:
        reason = verdict.reason if verdict is not None else "nothing has proven the others"
        return replace(REFERENCE_GPU, reason=f"of the {kernels.name} kernels {reason}")
    return kernels


def made_for(device: DeviceInfo, model: ModelConfig, block_size: int) -> tuple[Kernels | None, str]:
    """Return the Pallas kernels for a GPU and a model, unproven, or None and the reason why there are none."""
    make = maker_of(device)
    if make is None:
        return None, f"there are no others for {device.kind} yet"
    from pallas_kernels.gpu.attention.ragged_paged_attention import supports

    shape: dict[str, Any] = {"heads": model.num_heads, "kv_heads": model.num_kv_heads, "head_dim": model.head_dim}
    reason = supports(**shape, block_size=block_size, dtype=model.dtype, wgmma=make is hopper) or compiler_trouble()
    if reason is not None:
        return None, reason
    return make(device.num_cores), ""


PROOF_TOLERANCE = proof.TOLERANCE
"""Largest absolute error of attention in a proof, by dtype."""


def prove_block_copies(kernels: Kernels, model: ModelConfig, block_size: int) -> None:
    """Raise AssertionError if blocks of such a model are copied wrongly."""
    proof.prove_copies(
        kernels.gather_blocks,
        kernels.scatter_blocks,
        kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        block_size=block_size,
        dtype=model.dtype,
    )


_PROVING = (
    *("tools/prove_kernels.py", "kernels/choice.py", "models/attention.py", "models/batch.py", "models/kv_cache.py"),
    *("runner/packer.py", "runner/row_state.py", "arrays.py"),
)
"""Files that decide how a proof ends, beside the kernels."""


def gpu_sources() -> str:
    """A digest of the code of the kernels for GPUs, and of their proof."""
    kernels, package = Path(proof.__file__).parent, Path(__file__).parent.parent
    files = [kernels / "proof.py", *kernels.glob("gpu/**/*.py"), *(package / name for name in _PROVING)]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:20]
