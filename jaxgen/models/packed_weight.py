"""Weights in the layout of a packed product, which reads them unchanged, while XLA would rearrange them each time."""

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Shaped

from jaxgen.arrays import ArrayLike
from jaxgen.kernels.kernels import Kernel, Kernels, PackedProduct
from jaxgen.kernels.references import as_it_is, stored_rows


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PackedWeight:
    """A stack of L weights [out, in], or of L layers of E experts' weights, with the index of the weight or layer to
    use.

    A slice of the stack would be a copy.
    """

    data: Shaped[ArrayLike, "L ..."]
    layer: Int[ArrayLike, ""]
    out_features: int = field(metadata={"static": True})
    in_features: int = field(metadata={"static": True})
    kernel: PackedProduct = field(metadata={"static": True})

    @classmethod
    def pack(cls, weight: Float[Array, "*L O I"], kernel: PackedProduct) -> "PackedWeight":
        """Pack a weight with one stack axis or none, or with one stack axis and one of experts."""
        stack = weight[None] if weight.ndim == 2 else weight
        *_, size_out, size_in = stack.shape
        return cls(kernel.pack(stack), jnp.zeros((), jnp.int32), size_out, size_in, kernel)

    def at(self, layer: Int[Array, ""]) -> "PackedWeight":
        return replace(self, layer=layer)

    def alone(self, layer: int) -> "PackedWeight":
        """Return a copy of one layer's weight as a stack of its own."""
        return replace(self, data=self.data[layer : layer + 1])

    @property
    def num_layers(self) -> int:
        return len(self.data)

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
        return self.kernel.product(
            x, self.data, self.layer, num_tokens, residual, out_features=self.out_features, dtype=dtype
        )

    def gated_product(
        self, x: Float[Array, "T I"], num_tokens: Int[ArrayLike, ""], *, activation: str
    ) -> Float[Array, "T F"] | None:
        """Return the gated ``activation`` of the product, rounded once; None if the kernel does not join the two."""
        gated = self.kernel.gated_product
        return gated and gated(x, self.data, self.layer, num_tokens, activation=activation, dtype=x.dtype)

    def product_parts(self, x: Float[Array, "T I"], num_tokens: Int[ArrayLike, ""]) -> Float[Array, "P T O"] | None:
        """Return float32 sums by parts of the inputs, which make the product; None if the kernel sums them itself."""
        parts = self.kernel.product_parts
        return parts and parts(x, self.data, self.layer, num_tokens)

    def expert_product(self, x: Float[Array, "S I"], starts: Int[Array, "E1"]) -> Float[Array, "S O"]:
        """Return x @ weight.T in float32, with the weight of each row's expert.

        Expert e has the rows from ``starts[e]`` to ``starts[e + 1]``; rows after those of all experts hold
        nothing to read.
        """
        assert self.kernel.expert_product is not None, "experts' weights are packed for it"
        return self.kernel.expert_product(x, self.data, self.layer, starts, out_features=self.out_features)

    def rows(self, ids: Int[Array, "n"]) -> Float[Array, "n I"]:
        """Return rows of the first weight of the stack."""
        return self.kernel.rows(self.data[0], ids)[:, : self.in_features]


def plain_product(x: Float[Array, "T I"], weight: Float[Array, "O I"]) -> Float[Array, "T O"]:
    """Return x @ weight.T by XLA, accumulated and returned in float32; float32 operands are not rounded."""
    return lax.dot_general(
        x,
        weight,
        (((1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


def packing(kernels: Kernels) -> PackedProduct:
    """Return the packed product of these kernels, or XLA's own product in its place, which packs nothing."""
    of_experts = _Experts(kernels.expert_product)
    if kernels.packed is None:
        return PackedProduct(as_it_is, _product, stored_rows, of_experts)
    return kernels.packed if kernels.packed.expert_product else replace(kernels.packed, expert_product=of_experts)


def _product(
    x: Array,
    data: Array,
    layer: Array,
    num_tokens: Array,
    residual: Array | None = None,
    *,
    out_features: int,
    dtype: DTypeLike,
) -> Array:
    del num_tokens, out_features
    y = plain_product(x, data[layer]).astype(dtype)
    return y if residual is None else residual + y


@dataclass(frozen=True)
class _Experts:
    """A product of experts' weights that are not packed, with the arguments of one with packed weights."""

    product: Kernel

    def __call__(self, x: Array, data: Array, layer: Array, starts: Array, *, out_features: int) -> Array:
        del out_features
        result: Array = self.product(x, data, layer, starts)
        return result
