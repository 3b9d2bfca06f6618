"""Matrix products of the layers. Matrices are kept as Hugging Face stores them, [out, in]: XLA on CPU repacks less of
such a weight than of its transpose, and loading makes no copy.

Each parameter may have a leading layer axis (``stack``), over which ``layer_stack.fold_layers`` iterates.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxgen.arrays import ArrayLike
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.mixed_weight import KernelWeight
from jaxgen.models.packed_weight import PackedWeight, plain_product
from jaxgen.models.quantized_weight import QuantizedWeight
from jaxgen.models.rank_sum import sum_in_rank_order
from jaxgen.models.residual import Residual, Unsummed

Shape = tuple[int, ...]
INIT_STD = 0.02


class Matrix(nnx.Param[jax.Array]):
    """A weight [*stack, out, in] of a matrix product, which may be packed for it."""


def product(
    x: Float[Array, "T I"], weight: Float[Array, "O I"] | KernelWeight, num_tokens: Int[ArrayLike, ""]
) -> Float[Array, "T O"]:
    """Return x @ weight.T, accumulated and returned in float32; float32 operands are not rounded to fewer bits.

    Rows from ``num_tokens`` on are padding: a packed product does not compute them.
    """
    if isinstance(weight, KernelWeight):
        return weight.product(x, num_tokens)
    return plain_product(x, weight)


def normal(rngs: nnx.Rngs, shape: Shape, dtype: str) -> jax.Array:
    """Return random numbers for a weight that is not loaded."""
    return INIT_STD * jax.random.normal(rngs.params(), shape, jnp.dtype(dtype))


class Linear(nnx.Module):
    """y = x @ weight.T + bias, weight [*stack, out, in].

    ``divided``: each of several devices has some of the inputs, and the product is the sum of theirs.
    """

    def __init__(
        self,
        size_in: int,
        size_out: int,
        *,
        bias: bool,
        dtype: str,
        rngs: nnx.Rngs,
        stack: Shape = (),
        divided: bool = False,
    ):
        self.divided = divided
        self.weight = Matrix(normal(rngs, (*stack, size_out, size_in), dtype))
        self.bias = nnx.Param(jnp.zeros((*stack, size_out), jnp.dtype(dtype))) if bias else None

    def __call__(
        self, x: Float[Array, "T I"], num_tokens: Int[ArrayLike, ""], residual: Float[Array, "T O"] | None = None
    ) -> Float[Array, "T O"]:
        """Return the result, rounded to the dtype of x and then added to ``residual``, if any."""
        weight = self.weight.get_value()
        if self.bias is None and not self.divided and isinstance(weight, KernelWeight):
            return weight.product(x, num_tokens, residual, dtype=x.dtype)
        y = self._product(x, num_tokens, x.dtype) if self.bias is None else self.in_float32(x, num_tokens)
        y = y.astype(x.dtype)
        return y if residual is None else residual + y

    def added(
        self,
        x: Float[Array, "T I"],
        num_tokens: Int[ArrayLike, ""],
        residual: Float[Array, "T O"] | None,
        *,
        joins: bool = False,
    ) -> Residual:
        """Return the same. With ``joins`` parts of the product may be left to the norm that follows."""
        weight, parts = self.weight.get_value(), None
        joins = joins and residual is not None and self.bias is None and not self.divided
        if joins and isinstance(weight, KernelWeight):
            parts = weight.product_parts(x, num_tokens)
        return self(x, num_tokens, residual) if residual is None or parts is None else Unsummed(residual, parts)

    def gated(
        self, x: Float[Array, "T I"], num_tokens: Int[ArrayLike, ""], kernels: Kernels, activation: str
    ) -> Float[Array, "T F"]:
        """Return the gated activation of the result, computed in float32 and rounded to the dtype of x once.

        The first half of the outputs are gates, the other half is what they multiply.
        """
        weight = self.weight.get_value()
        joined = None
        if self.bias is None and isinstance(weight, KernelWeight):
            joined = weight.gated_product(x, num_tokens, activation=activation)
        if joined is not None:
            return joined
        y: Array = kernels.gated(self.in_float32(x, num_tokens), num_tokens, activation=activation, dtype=x.dtype)
        return y

    def in_float32(self, x: Float[Array, "T I"], num_tokens: Int[ArrayLike, ""]) -> Float[Array, "T O"]:
        """Return the result in float32, as it was accumulated."""
        y = self._product(x, num_tokens, jnp.float32)
        return y if self.bias is None else y + self.bias[...].astype(jnp.float32)

    def _product(self, x: Float[Array, "T I"], num_tokens: Int[ArrayLike, ""], dtype: DTypeLike) -> Float[Array, "T O"]:
        """Return the product. Here sums cross devices, but those of experts: rounded to ``dtype``, else in float32."""
        y = product(x, self.weight.get_value(), num_tokens)
        return sum_in_rank_order(y, dtype) if self.divided else y


class Embedding(nnx.Module):
    """Rows of weight [vocabulary, width]; as a ``head``, its transpose gives logits, with a ``bias`` or without."""

    def __init__(self, num_rows: int, width: int, *, head: bool, dtype: str, rngs: nnx.Rngs, bias: bool = False):
        self.weight = (Matrix if head else nnx.Param)(normal(rngs, (num_rows, width), dtype))
        self.bias = nnx.Param(jnp.zeros(num_rows, jnp.dtype(dtype))) if bias else None

    def __call__(self, ids: Int[Array, "T"]) -> Float[Array, "T W"]:
        weight = self.weight.get_value()
        return weight.rows(ids) if isinstance(weight, PackedWeight | QuantizedWeight) else weight[ids]

    def products(self, x: Float[Array, "T W"], num_tokens: Int[ArrayLike, ""]) -> Float[Array, "T V"]:
        """Return x @ weight.T in float32, without the bias; rows from ``num_tokens`` on are padding."""
        return product(x, self.weight.get_value(), num_tokens)

    def biased(self, products: Float[Array, "n V"]) -> Float[Array, "n V"]:
        """Return the products with the bias, if there is one."""
        return products if self.bias is None else products + self.bias[...].astype(jnp.float32)
