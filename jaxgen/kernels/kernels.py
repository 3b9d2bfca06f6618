"""The kernels of a program, as one value with a field for each operation."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, overload

import jax.numpy as jnp

from jaxgen.core.mixed_weight import AnyFormat
from jaxgen.core.quantization import NATIVE_BITS, WeightFormat
from pallas_kernels.activations import activate_ref, gated_ref
from pallas_kernels.copy_blocks import gather_blocks_ref, scatter_blocks_ref
from pallas_kernels.expert_product import expert_product_ref
from pallas_kernels.norms import layer_norm_ref, rms_norm_ref
from pallas_kernels.rotary import rotated_heads_ref

Kernel = Callable[..., Any]


@dataclass(frozen=True)
class PackedProduct:
    """Matrix products with weights that were packed once; see pallas_kernels.packed_product, and of ``expert_product``
    pallas_kernels.expert_product."""

    pack: Kernel
    product: Kernel
    rows: Kernel
    expert_product: Kernel


@dataclass(frozen=True)
class QuantizedProduct:
    """Products with weights of 2 to 8 bits that were packed once; see pallas_kernels.quantized_product."""

    pack_codes: Kernel
    pack_groups: Kernel
    product: Kernel
    rows: Kernel
    expert_product: Kernel
    bits: tuple[int, ...] = NATIVE_BITS
    """Bit widths that codes may have."""


@dataclass(frozen=True)
class Kernels:
    """Kernels of programs, each with the signature of its ``_ref`` twin; equal Kernels make equal programs."""

    name: str
    ragged_paged_attention: Kernel
    write_kv: Kernel
    plan_attention: Kernel | None = None
    """Makes the ``plan`` argument of ``ragged_paged_attention``, the same in all layers; None: it takes none."""
    packed: PackedProduct | None = None
    """None: XLA's own products, with weights that are not packed."""
    quantized: QuantizedProduct | None = None
    """None: quantized weights become numbers of the model's dtype when they are loaded."""
    floats: QuantizedProduct | None = None
    """Of codes that are floating-point numbers. None: these become integers, if such hold them, or numbers."""
    rms_norm: Kernel = rms_norm_ref
    layer_norm: Kernel = layer_norm_ref
    activate: Kernel = activate_ref
    gated: Kernel = gated_ref
    rotated_heads: Kernel = rotated_heads_ref
    expert_product: Kernel = expert_product_ref
    """Of weights that are not packed."""
    zeros: Kernel = jnp.zeros
    """Makes an array of zeros, of a shape and a dtype, from no array."""
    gather_blocks: Kernel = gather_blocks_ref
    scatter_blocks: Kernel = scatter_blocks_ref
    partial_recompute: Kernel | None = None
    """None: K and V are computed from layer inputs by the step's own products, with the queries, which on a CPU gives
    the same bits."""
    separate_layers: bool = False
    """Whether the program has unrolled layers, with matrices that are separate arrays."""
    compiler_options: tuple[tuple[str, str], ...] = ()
    """XLA's, for programs of these kernels."""
    separate_sampling: bool = False
    """Whether programs that the host chooses sample, instead of branches of the step."""
    build: tuple[tuple[str, str], ...] = ()
    """How native kernels were compiled: by name, the digest of their code and their compiler."""
    reason: str = field(default="", compare=False)
    """Why no faster kernels were chosen, for the log and metrics; empty: these are the fastest."""

    @overload
    def placed(self, form: WeightFormat) -> WeightFormat | None: ...

    @overload
    def placed(self, form: AnyFormat) -> AnyFormat | None: ...

    def placed(self, form: AnyFormat) -> AnyFormat | None:
        """Return the format of a weight that programs read; None: numbers of the model's dtype."""
        integers = () if self.quantized is None else self.quantized.bits
        return form.placed(integers=integers, floats=self.floats is not None)

    @property
    def skips_padding(self) -> bool:
        """Whether products leave out rows of padding, so that a step's time follows its tokens."""
        return self.packed is not None
