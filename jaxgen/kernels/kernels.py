"""The kernels of a program, as one value with a field for each operation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, overload

import jax.numpy as jnp

from jaxgen.core import operations
from jaxgen.core.mixed_weight import AnyFormat
from jaxgen.core.operations import XLA, Choice, Choices
from jaxgen.core.quantization import NATIVE_BITS, WeightFormat
from pallas_kernels.activations import activate_ref, gated_ref
from pallas_kernels.copy_blocks import gather_blocks_ref, scatter_blocks_ref
from pallas_kernels.expert_product import expert_product_ref
from pallas_kernels.gated_delta import gated_delta_ref
from pallas_kernels.norms import layer_norm_ref, rms_norm_ref
from pallas_kernels.rotary import rotated_heads_ref
from pallas_kernels.short_convolution import short_convolution_ref

Kernel = Callable[..., Any]
UNREAD_CODES = "no others read a cache of 8 bits as it is written there"
"""Why a kernel does not write a cache of codes."""
EXPERTS_AXES = 4
"""Axes of a stack of layers of experts' matrices."""


@dataclass(frozen=True)
class PackedProduct:
    """Matrix products with weights that were packed once; see pallas_kernels.packed_product and dense_product, and of
    ``expert_product`` pallas_kernels.expert_product."""

    pack: Kernel
    product: Kernel
    rows: Kernel
    expert_product: Kernel | None
    """None: experts' weights are not packed."""
    gated_product: Kernel | None = None
    """None: a gated MLP has a product and then its activation."""
    product_parts: Kernel | None = None
    """Returns None for weights whose product has one part. None: all have."""
    takes: Callable[[int, int, str], bool] | None = None
    """(inputs, outputs, dtype) -> whether it multiplies such weights; None: it takes all. Others are not packed, and
    XLA multiplies them."""

    def packs(self, shape: tuple[int, ...], dtype: str) -> bool:
        """Return whether a weight of this shape, [*layers, *experts, outputs, inputs], is packed."""
        if len(shape) == EXPERTS_AXES and self.expert_product is None:
            return False
        return self.takes is None or self.takes(shape[-1], shape[-2], dtype)


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
    gated_product: Kernel | None = None
    """None: a gated MLP has a product and then its activation."""
    product_parts: Kernel | None = None
    """Returns None for weights whose product has one part. None: all have."""
    reads_stacks: bool = False
    """Whether it reads a layer's weight of a stack, where programs have layers apart."""
    takes: Callable[[WeightFormat, tuple[int, ...], str, bool], bool] | None = None
    """(format, [*stack, outputs, inputs], dtype of inputs, whether these are rounded to FP8) -> whether it multiplies
    such a weight; None: it takes all."""
    otherwise: "QuantizedProduct | None" = None
    """Multiplies the other weights."""

    def of_weight(
        self, form: WeightFormat, shape: tuple[int, ...], dtype: str, *, fp8_inputs: bool
    ) -> "QuantizedProduct":
        """Return the product that multiplies a weight [*stack, outputs, inputs]."""
        if self.takes is None or self.otherwise is None or self.takes(form, shape, dtype, fp8_inputs):
            return self
        return self.otherwise


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
    add_rms_norm: Kernel | None = None
    """None: sums come before norms."""
    add_layer_norm: Kernel | None = None
    """The same; the kernels have both or none."""
    activate: Kernel = activate_ref
    gated: Kernel = gated_ref
    rotated_heads: Kernel = rotated_heads_ref
    rotate_write: Kernel | None = None
    """Norms, rotates and scales queries and keys, and writes K and V, see pallas_kernels.rotate_write; None: a layer
    does so by the operations of each."""
    short_convolution: Kernel = short_convolution_ref
    gated_delta: Kernel = gated_delta_ref
    expert_product: Kernel = expert_product_ref
    """Of weights that are not packed."""
    zeros: Kernel = jnp.zeros
    """Makes an array of zeros, of a shape and a dtype, from no array."""
    gather_blocks: Kernel = gather_blocks_ref
    scatter_blocks: Kernel = scatter_blocks_ref
    partial_recompute: Kernel | None = None
    """None: K and V are computed from layer inputs by the step's own products, with the queries, which on a CPU gives
    the same bits."""
    scales_apart: bool = False
    """Whether attention and writes have the scales of a cache of 8 bits apart; see pallas_kernels.kv_codes."""
    separate_layers: bool = False
    """Whether the program has unrolled layers. Matrices are separate arrays then, unless a product reads a stack."""
    compiler_options: tuple[tuple[str, str], ...] = ()
    """XLA's, for programs of these kernels."""
    separate_sampling: bool = False
    """Whether programs that the host chooses sample, instead of branches of the step."""
    build: tuple[tuple[str, str], ...] = ()
    """How native kernels were compiled: by name, the digest of their code and their compiler."""
    choices: Choices = field(default_factory=dict, compare=False)
    """Which kernels each operation has, for the log, metrics and the digest."""
    padded: str = field(default="", compare=False)
    """What XLA computes for padding in a model's layers, in addition to operations; empty: nothing."""

    @overload
    def placed(self, form: WeightFormat) -> WeightFormat | None: ...

    @overload
    def placed(self, form: AnyFormat) -> AnyFormat | None: ...

    def placed(self, form: AnyFormat) -> AnyFormat | None:
        """Return the format of a weight that programs read; None: numbers of the model's dtype."""
        integers = () if self.quantized is None else self.quantized.bits
        return form.placed(integers=integers, floats=self.floats is not None)

    @property
    def reason(self) -> str:
        """Why operations do not have the fastest kernels; empty: all have."""
        return operations.reasons_of(self.choices)

    @property
    def own(self) -> tuple[str, ...]:
        """The operations whose kernels are not XLA's."""
        return tuple(name for name, choice in self.choices.items() if choice.implementation != XLA)

    @property
    def joins_sums(self) -> bool:
        """Whether norms add the parts of the product before them."""
        return self.add_rms_norm is not None

    @property
    def skips_padding(self) -> bool:
        """Whether a step's time follows its tokens, since nothing in a layer is XLA's, which computes padding."""
        return not self.computes_padding

    @property
    def computes_padding(self) -> str:
        """What a step computes for padding; empty: nothing."""
        with_codes = [operations.CODES] if operations.CODES in self.choices else []
        of_xla = [name for name in (*operations.OF_EVERY_TOKEN, *with_codes) if name not in self.own]
        return ", ".join([*of_xla, *filter(None, [self.padded])])

    @property
    def sums_alone(self) -> bool:
        """Whether no sum over a token's numbers is XLA's, whose order follows the number of tokens of a program."""
        sums = {operations.ATTENTION, operations.PRODUCTS, operations.NORMS}
        sums |= {operations.EXPERTS, operations.CODES} & set(self.choices)
        return sums <= set(self.own) and operations.QUANTIZED not in self.padded

    @property
    def wants_narrow(self) -> bool:
        """Whether a GPU may have a narrow program: with the bits of the wide one, which takes longer for few tokens."""
        return self.sums_alone and not self.skips_padding

    def compared_with(self, twins: "Kernels") -> "Kernels":
        """Return the kernels with the choices that follow from their fields: what ``twins`` have too is XLA's."""
        own = {name for name, fields in FIELDS.items() if any(_differ(self, twins, one) for one in fields)}
        return replace(self, choices={name: Choice(self.name if name in own else XLA) for name in FIELDS})

    def without(self, reasons: Mapping[str, str], twins: "Kernels") -> "Kernels":
        """Return the kernels, but the ones of ``twins`` for the operations that ``reasons`` names, and why.

        Where scales are apart, the kernel that writes them is left where its attention is.
        """
        if self.scales_apart and operations.ATTENTION in reasons and operations.ROTATION in self.own:
            reasons = {operations.ROTATION: UNREAD_CODES, **reasons}
        fields = {one: getattr(twins, one) for name in reasons for one in FIELDS[name]}
        choices = {**self.choices, **{name: Choice(XLA, reason) for name, reason in reasons.items()}}
        result = replace(self, **fields, choices=choices)
        return result if result.own else replace(result, name=XLA)


FIELDS: Mapping[str, tuple[str, ...]] = {
    operations.ATTENTION: ("ragged_paged_attention", "write_kv", "plan_attention", "scales_apart"),
    operations.COPIES: ("gather_blocks", "scatter_blocks"),
    operations.PRODUCTS: ("packed",),
    operations.NORMS: ("rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm"),
    operations.ACTIVATIONS: ("activate", "gated"),
    operations.ROTATION: ("rotated_heads", "rotate_write"),
    operations.EXPERTS: ("expert_product",),
    operations.CODES: ("quantized", "floats"),
    operations.CONVOLUTIONS: ("short_convolution",),
    operations.DELTA_NETS: ("gated_delta",),
}
"""Fields of each operation, which are chosen together: attention takes its own plan."""


def _differ(kernels: Kernels, others: Kernels, name: str) -> bool:
    return bool(getattr(kernels, name) != getattr(others, name))
