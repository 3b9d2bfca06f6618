"""Weights of 2 to 8 bits in the layout of a quantised product, which reads them as they are."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Shaped, UInt8

from jaxgen.arrays import ArrayLike
from jaxgen.core.quantization import PLANES, Bits, GroupedWeight, WeightFormat
from jaxgen.kernels.choice import GroupedCodes, fp8_inputs
from jaxgen.kernels.kernels import QuantizedProduct

Shape = tuple[int, ...]


class Codes(NamedTuple):
    """The arrays of a GroupedWeight, on the host or the device."""

    codes: Any
    scales: Any
    zeros: Any = None
    order: Any = None
    minimums: Any = None
    block_scales: Any = None
    block_minimums: Any = None

    @classmethod
    def of(cls, weight: GroupedWeight) -> "Codes":
        parts: dict[str, Any] = dict(weight.arrays())
        return cls(**parts)

    def only(self, index: Any) -> "Codes":
        """Return a part of the stack."""
        return self.each(lambda part: part[index])

    def each(self, change: Callable[[Any], Any]) -> "Codes":
        """Return the arrays, changed."""
        return Codes(*(None if part is None else change(part) for part in self))

    @classmethod
    def abstract(cls, shape: Shape, weight_format: WeightFormat) -> "Codes":
        """Return the shapes and dtypes of a weight [*stack, out, in] in this format."""
        parts = weight_format.arrays(shape).items()
        return cls(**{name: jax.ShapeDtypeStruct(size, dtype) for name, (size, dtype) in parts})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuantizedWeight:
    """A stack of L weights [out, in], or of L layers of E experts' weights, as codes with scales, and the index of the
    one, or the layer, to use.

    It is used as a PackedWeight is. ``dtype``: that of its rows, where it is an embedding table. ``fp8_inputs``:
    whether products round their inputs to FP8, by token; the codes are FP8 then, with a scale for each output.
    """

    parts: GroupedCodes
    order: Int[ArrayLike, "L ..."] | None
    layer: Int[ArrayLike, ""]
    out_features: int = field(metadata={"static": True})
    in_features: int = field(metadata={"static": True})
    bits: int = field(metadata={"static": True})
    group: int = field(metadata={"static": True})
    dtype: str = field(metadata={"static": True})
    kernel: QuantizedProduct = field(metadata={"static": True})
    fp8_inputs: bool = field(metadata={"static": True})

    @classmethod
    def pack(
        cls,
        weight_format: WeightFormat,
        weight: Codes,
        kernel: QuantizedProduct,
        dtype: str,
        *,
        fp8_inputs: bool = False,
    ) -> "QuantizedWeight":
        """Pack a weight with one stack axis or none, or with one stack axis and one of experts."""
        weight = weight.each(jnp.asarray)
        if weight.codes.ndim == 2:
            weight = weight.only(None)
        size_out, size_in = weight.codes.shape[-2], weight.codes.shape[-1] * 8 // weight_format.bits
        codes = _packed(weight.codes, bits=weight_format.bits, pack=kernel.pack_codes)
        of_groups = (weight.scales, weight.zeros, weight.minimums, weight.block_scales, weight.block_minimums)
        parts = GroupedCodes(codes, *(None if part is None else kernel.pack_groups(part) for part in of_groups))
        group = (
            -(-size_in // weight_format.unit) * weight_format.unit
            if weight_format.group is None
            else weight_format.group
        )
        first = jnp.zeros((), jnp.int32)
        return cls(parts, weight.order, first, size_out, size_in, weight_format.bits, group, dtype, kernel, fp8_inputs)

    def at(self, layer: Int[Array, ""]) -> "QuantizedWeight":
        return replace(self, layer=layer)

    def alone(self, layer: int) -> "QuantizedWeight":
        """Return a copy of one layer's weight as a stack of its own."""

        only = slice(layer, layer + 1)
        order = None if self.order is None else self.order[only]
        return replace(self, parts=self.parts.only(only), order=order)

    @property
    def num_layers(self) -> int:
        return len(self.parts.codes)

    def product(
        self,
        x: Float[Array, "T I"],
        num_tokens: Int[ArrayLike, ""],
        residual: Float[Array, "T O"] | None = None,
        *,
        dtype: DTypeLike = jnp.float32,
    ) -> Float[Array, "T O"]:
        """Return x @ weight.T for the first ``num_tokens`` rows of x; the others hold nothing to read.

        The product is rounded from float32 to ``dtype`` and then added to ``residual``, if any.
        """
        x = self._ordered(x)
        sizes: dict[str, Any] = {"bits": self.bits, "group": self.group, "out_features": self.out_features}
        if not self.fp8_inputs:
            return self.kernel.product(x, self.parts, self.layer, num_tokens, residual, **sizes, dtype=dtype)
        codes, scales = fp8_inputs(x)
        y = (self.kernel.product(codes, self.parts, self.layer, num_tokens, **sizes) * scales).astype(dtype)
        return y if residual is None else residual + y

    def gated_product(
        self, x: Float[Array, "T I"], num_tokens: Int[ArrayLike, ""], *, activation: str
    ) -> Float[Array, "T F"] | None:
        """See PackedWeight.gated_product."""
        gated = self.kernel.gated_product
        if gated is None or self.fp8_inputs:
            return None
        about: dict[str, Any] = {"group": self.group, "activation": activation, "dtype": x.dtype}
        return gated(self._ordered(x), self.parts, self.layer, num_tokens, **about)

    def product_parts(self, x: Float[Array, "T I"], num_tokens: Int[ArrayLike, ""]) -> Float[Array, "P T O"] | None:
        """See PackedWeight.product_parts."""
        parts = self.kernel.product_parts
        if parts is None or self.fp8_inputs:
            return None
        return parts(self._ordered(x), self.parts, self.layer, num_tokens, group=self.group)

    def _ordered(self, x: Float[Array, "T I"]) -> Float[Array, "T I"]:
        """Return inputs in the order of the weight's."""
        return x if self.order is None else x[:, self.order[self.layer]]

    def expert_product(self, x: Float[Array, "S I"], starts: Int[Array, "E1"]) -> Float[Array, "S O"]:
        """Return x @ weight.T in float32, with the weight of each row's expert, as PackedWeight does."""
        assert self.order is None, "the reader of checkpoints leaves no order with experts"
        sizes: dict[str, Any] = {"bits": self.bits, "group": self.group, "out_features": self.out_features}
        if not self.fp8_inputs:
            return self.kernel.expert_product(x, self.parts, self.layer, starts, **sizes)
        codes, scales = fp8_inputs(x)  # the kernels multiply numbers of the model's dtype, which holds these
        return self.kernel.expert_product(codes.astype(x.dtype), self.parts, self.layer, starts, **sizes) * scales

    def rows(self, ids: Int[Array, "n"]) -> Float[Array, "n I"]:
        """Return rows of the first weight of the stack."""
        rows = self.kernel.rows(self.parts.only(0), ids, bits=self.bits, group=self.group)
        rows = rows[:, : self.in_features].astype(self.dtype)
        return rows if self.order is None else rows[:, jnp.argsort(self.order[0])]


@partial(jax.jit, static_argnames=("bits", "pack"))
def _packed(codes: UInt8[Array, "*stack O W"], *, bits: Bits, pack: Any) -> Shaped[Array, "*packed"]:
    """Pack codes, whose bytes are those of a GroupedWeight, a matrix at a time: one has a byte for each code then."""

    def pack_matrix(matrix: UInt8[Array, "O W"]) -> Shaped[Array, "*one"]:
        packed: jax.Array = pack(_unpacked(matrix, bits), bits=bits)
        return packed

    packed = lax.map(pack_matrix, codes.reshape(-1, *codes.shape[-2:]))
    return packed.reshape(*codes.shape[:-2], *packed.shape[1:])


def _unpacked(matrix: UInt8[Array, "O W"], bits: Bits) -> UInt8[Array, "O I"]:
    """Return the codes of bytes that are laid out as ``jaxgen.core.quantization.packed`` does."""
    inputs, start, shift = matrix.shape[1] * 8 // bits, 0, 0
    result = jnp.zeros((len(matrix), inputs), jnp.uint8)
    for width in PLANES[bits]:
        plane = matrix[:, start : start + inputs * width // 8]
        parts = jnp.stack([plane >> at & (1 << width) - 1 for at in range(0, 8, width)], axis=-1)
        result |= parts.reshape(result.shape) << shift
        start, shift = start + inputs * width // 8, shift + width
    return result
