"""Weights of 4 or 8 bits in the layout of a quantised product, which reads them as they are."""

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
from jaxgen.core.quantization import GroupedWeight, WeightFormat
from jaxgen.kernels.choice import QuantizedProduct
from jaxgen.models.packed_weight import PackedWeight

Shape = tuple[int, ...]


class Codes(NamedTuple):
    """The arrays of a GroupedWeight, on the host or the device."""

    codes: Any
    scales: Any
    zeros: Any = None
    order: Any = None

    @classmethod
    def of(cls, weight: GroupedWeight) -> "Codes":
        return cls(weight.codes, weight.scales, weight.zeros, weight.order)

    def only(self, index: Any) -> "Codes":
        """Return a part of the stack."""
        return self.each(lambda part: part[index])

    def each(self, change: Callable[[Any], Any]) -> "Codes":
        """Return the arrays, changed."""
        return Codes(*(None if part is None else change(part) for part in self))

    @classmethod
    def abstract(cls, shape: Shape, about: WeightFormat) -> "Codes":
        """Return the shapes and dtypes of a weight [*stack, out, in] in this format."""
        parts = about.arrays(shape).items()
        return cls(**{name: jax.ShapeDtypeStruct(size, dtype) for name, (size, dtype) in parts})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuantizedWeight:
    """A stack of L weights [out, in], or of L layers of E experts' weights, as codes with scales, and the index of the
    one, or the layer, to use.

    It is used as a PackedWeight is. ``dtype``: that of its rows, where it is an embedding table.
    """

    codes: Shaped[ArrayLike, "L ..."]
    scales: Shaped[ArrayLike, "L ..."]
    zeros: Shaped[ArrayLike, "L ..."] | None
    order: Int[ArrayLike, "L ..."] | None
    layer: Int[ArrayLike, ""]
    out_features: int = field(metadata={"static": True})
    in_features: int = field(metadata={"static": True})
    bits: int = field(metadata={"static": True})
    group: int = field(metadata={"static": True})
    dtype: str = field(metadata={"static": True})
    kernel: QuantizedProduct = field(metadata={"static": True})

    @classmethod
    def pack(cls, about: WeightFormat, weight: Codes, kernel: QuantizedProduct, dtype: str) -> "QuantizedWeight":
        """Pack a weight with one stack axis or none, or with one stack axis and one of experts."""
        weight = weight.each(jnp.asarray)
        if weight.codes.ndim == 2:
            weight = weight.only(None)
        size_out, size_in = weight.codes.shape[-2], weight.codes.shape[-1] * 8 // about.bits
        codes = _packed(weight.codes, bits=about.bits, pack=kernel.pack_codes)
        scales = kernel.pack_groups(weight.scales)
        zeros = None if weight.zeros is None else kernel.pack_groups(weight.zeros)
        unit = 32 // about.bits  # inputs, of which packed codes have whole ones
        group = -(-size_in // unit) * unit if about.group is None else about.group
        first = jnp.zeros((), jnp.int32)
        return cls(codes, scales, zeros, weight.order, first, size_out, size_in, about.bits, group, dtype, kernel)

    def at(self, layer: Int[Array, ""]) -> "QuantizedWeight":
        return replace(self, layer=layer)

    def alone(self, layer: int) -> "QuantizedWeight":
        """Return a copy of one layer's weight as a stack of its own."""

        def of_layer(part: Any) -> Any:
            return None if part is None else part[layer : layer + 1]

        return replace(
            self,
            codes=of_layer(self.codes),
            scales=of_layer(self.scales),
            zeros=of_layer(self.zeros),
            order=of_layer(self.order),
        )

    @property
    def num_layers(self) -> int:
        return len(self.codes)

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
        if self.order is not None:
            x = x[:, self.order[self.layer]]
        return self.kernel.product(
            x,
            *(self.codes, self.scales, self.zeros, self.layer, num_tokens, residual),
            bits=self.bits,
            group=self.group,
            out_features=self.out_features,
            dtype=dtype,
        )

    def expert_product(self, x: Float[Array, "S I"], starts: Int[Array, "E1"]) -> Float[Array, "S O"]:
        """Return x @ weight.T in float32, with the weight of each row's expert, as PackedWeight does."""
        assert self.order is None, "the reader of checkpoints leaves no order with experts"
        return self.kernel.expert_product(
            x,
            *(self.codes, self.scales, self.zeros, self.layer, starts),
            bits=self.bits,
            group=self.group,
            out_features=self.out_features,
        )

    def rows(self, ids: Int[Array, "n"]) -> Float[Array, "n I"]:
        """Return rows of the first weight of the stack."""
        zeros = None if self.zeros is None else self.zeros[0]
        found = self.kernel.rows(self.codes[0], self.scales[0], zeros, ids, bits=self.bits, group=self.group)
        found = found[:, : self.in_features].astype(self.dtype)
        return found if self.order is None else found[:, jnp.argsort(self.order[0])]


KernelWeight = PackedWeight | QuantizedWeight
"""Weights in the layout of a kernel, which multiply by it."""


@partial(jax.jit, static_argnames=("bits", "pack"))
def _packed(codes: UInt8[Array, "*stack O W"], *, bits: int, pack: Any) -> Shaped[Array, "*packed"]:
    """Pack codes, of which those of 4 bits come two to a byte, a matrix at a time: one has two bytes to a code then."""

    def one(matrix: UInt8[Array, "O W"]) -> Shaped[Array, "*one"]:
        if bits == 4:
            matrix = jnp.stack([matrix & 15, matrix >> 4], axis=-1).reshape(len(matrix), -1)
        packed: jax.Array = pack(matrix, bits=bits)
        return packed

    packed = lax.map(one, codes.reshape(-1, *codes.shape[-2:]))
    return packed.reshape(*codes.shape[:-2], *packed.shape[1:])
