"""Stacked weights that are quantized in different formats, or not at all, per layer or per slice of outputs."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxgen.arrays import ArrayLike
from jaxgen.core.mixed_weight import AnyFormat, MixedFormat, PartFormat, place_of
from jaxgen.models.packed_weight import PackedWeight
from jaxgen.models.quantized_weight import QuantizedWeight, Shape

Parts = tuple[QuantizedWeight | PackedWeight, ...]
"""Stacks of the layers of one kind, whose outputs are those of the layers' matrices, one part after another. Parts
that are not quantized are packed weights."""


class MixedCodes(NamedTuple):
    """The arrays of a MixedWeight, by kind and part, on the host or the device: codes, or an array of numbers."""

    kinds: tuple[tuple[Any, ...], ...]


def map_parts(make: Callable[[Shape, PartFormat], Any], shape: Shape, weight_format: AnyFormat) -> Any:
    """Return what ``make`` gives for a weight [*stack, out, in], or for the parts of one in several formats."""
    if not isinstance(weight_format, MixedFormat):
        return make(shape, weight_format)
    return MixedCodes(tuple(tuple(make(size, form) for form, size in kind) for kind in weight_format.shapes(shape)))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MixedQuantizedWeight:
    """A stack of L weights [out, in], or of L layers of E experts' weights, and the index of the layer to use.

    ``layers``: the number of each layer's kind in ``kinds``. A program has the products of each kind once, however many
    layers there are, and computes those of the layer's.
    """

    kinds: tuple[Parts, ...]
    layer: Int[ArrayLike, ""]
    layers: tuple[int, ...] = field(metadata={"static": True})

    def at(self, layer: Int[Array, ""]) -> "MixedQuantizedWeight":
        return replace(self, layer=layer)

    def alone(self, layer: int) -> "MixedQuantizedWeight | QuantizedWeight | PackedWeight":
        """Return a copy of one layer's weight as a stack of its own."""
        kind, place = place_of(self.layers, layer)
        return joined(tuple(part.alone(place) for part in self.kinds[kind]))

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def product(
        self,
        x: Float[Array, "T I"],
        num_tokens: Int[ArrayLike, ""],
        residual: Float[Array, "T O"] | None = None,
        *,
        dtype: DTypeLike = jnp.float32,
    ) -> Float[Array, "T O"]:
        """See QuantizedWeight.product."""

        def of_part(part: QuantizedWeight | PackedWeight, outputs: slice) -> Array:
            added = None if residual is None else residual[:, outputs]
            return part.product(x, num_tokens, added, dtype=dtype)

        return self._of_layer(of_part)

    def gated_product(self, x: Float[Array, "T I"], num_tokens: Int[ArrayLike, ""], *, activation: str) -> None:
        """Join nothing: gates and what they multiply may be of different parts."""

    def product_parts(self, x: Float[Array, "T I"], num_tokens: Int[ArrayLike, ""]) -> None:
        """Leave nothing to a norm: parts of the outputs may have different parts of sums."""

    def expert_product(self, x: Float[Array, "S I"], starts: Int[Array, "E1"]) -> Float[Array, "S O"]:
        """See QuantizedWeight.expert_product."""
        return self._of_layer(lambda part, _: part.expert_product(x, starts))

    def _of_layer(self, product: Callable[[Any, slice], Array]) -> Array:
        """Return the products of the parts of the layer, side by side."""
        places = [place_of(self.layers, layer) for layer in range(self.num_layers)]
        kind, place = jnp.asarray(places, jnp.int32)[self.layer]
        result: Array = lax.switch(kind, [partial(_side_by_side, product, parts) for parts in self.kinds], place)
        return result


def joined(parts: Parts) -> MixedQuantizedWeight | QuantizedWeight | PackedWeight:
    """Return the weight of a stack of one layer, whose outputs are those of the parts."""
    return parts[0] if len(parts) == 1 else MixedQuantizedWeight((parts,), jnp.zeros((), jnp.int32), (0,))


def _side_by_side(product: Callable[[Any, slice], Array], parts: Parts, place: Int[Array, ""]) -> Array:
    products, start = [], 0
    for part in parts:
        products.append(product(part.at(place), slice(start, start := start + part.out_features)))
    return products[0] if len(products) == 1 else jnp.concatenate(products, axis=-1)


KernelWeight = PackedWeight | QuantizedWeight | MixedQuantizedWeight
"""Weights in the layout of a kernel, which multiply by it."""
