"""Norms over the last axis, each with an optional layer axis (``stack``) in its parameters."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxgen.arrays import ArrayLike
from jaxgen.core.decoder_parts import NormConfig
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.linear import Shape
from jaxgen.models.residual import Residual, Unsummed
from jaxgen.models.walk import LayerContext

Sum = tuple[Float[Array, "T D"], Float[Array, "T D"]]
"""A sum, and its norm."""


class NormWeight(nnx.Param[jax.Array]):
    """A weight or bias [*stack, width] of a norm, which a kernel of norms reads."""


class RMSNorm(nnx.Module):
    """x / rms(x) * weight. A float32 weight is multiplied before the result is rounded to the dtype of x."""

    def __init__(self, width: int, *, eps: float, dtype: str, stack: Shape = ()):
        self.weight = NormWeight(jnp.ones((*stack, width), jnp.dtype(dtype)))
        self.eps = eps

    def __call__(self, x: Float[Array, "T D"], num_tokens: Int[ArrayLike, ""], kernels: Kernels) -> Float[Array, "T D"]:
        normed: Array = kernels.rms_norm(x, self.weight[...], num_tokens, eps=self.eps)
        return normed

    def of_sum(self, x: Unsummed, num_tokens: Int[ArrayLike, ""], kernels: Kernels) -> Sum:
        """Return x with its parts, and the norm of that."""
        assert kernels.add_rms_norm is not None, "the norm was to add them"
        total, normed = kernels.add_rms_norm(x.x, x.parts, self.weight[...], num_tokens, eps=self.eps)
        return total, normed


class ValueNorm(nnx.Module):
    """x / rms(x), without a weight."""

    def __init__(self, eps: float):
        self.eps = eps

    def __call__(self, x: Float[Array, "T D"], num_tokens: Int[ArrayLike, ""], kernels: Kernels) -> Float[Array, "T D"]:
        weight = jnp.ones(x.shape[-1], jnp.float32)
        normed: Array = kernels.rms_norm(x, weight, num_tokens, eps=self.eps)
        return normed


class LayerNorm(nnx.Module):
    """(x - mean) / std * weight + bias; without weight and bias if not ``affine``. A late one has a float32 weight."""

    def __init__(self, config: NormConfig, width: int, *, dtype: str, stack: Shape = ()):
        of_weight = jnp.dtype("float32" if config.scale_in_float32 else dtype)
        self.weight = NormWeight(jnp.ones((*stack, width), of_weight)) if config.affine else None
        has_bias = config.affine and config.bias
        self.bias = NormWeight(jnp.zeros((*stack, width), jnp.dtype(dtype))) if has_bias else None
        self.eps = config.eps

    def __call__(self, x: Float[Array, "T D"], num_tokens: Int[ArrayLike, ""], kernels: Kernels) -> Float[Array, "T D"]:
        normed: Array = kernels.layer_norm(x, *self._weights, num_tokens, eps=self.eps)
        return normed

    def of_sum(self, x: Unsummed, num_tokens: Int[ArrayLike, ""], kernels: Kernels) -> Sum:
        """Return x with its parts, and the norm of that."""
        assert kernels.add_layer_norm is not None, "the norm was to add them"
        total, normed = kernels.add_layer_norm(x.x, x.parts, *self._weights, num_tokens, eps=self.eps)
        return total, normed

    @property
    def _weights(self) -> tuple[Array | None, Array | None]:
        weight = None if self.weight is None else self.weight[...]
        bias = None if self.bias is None else self.bias[...]
        if weight is not None and bias is None:
            bias = jnp.zeros_like(weight)
        return weight, bias


class HeadNorm(nnx.Module):
    """A norm of each head with a weight of its own, [H, d], multiplied in float32 before the result is rounded.

    The kernels' norms have one weight for all rows, so they normalise in float32 and the weight follows.
    """

    def __init__(self, config: NormConfig, heads: int, head_dim: int, *, dtype: str, stack: Shape = ()):
        self.weight = nnx.Param(
            jnp.ones((*stack, heads, head_dim), jnp.dtype("float32" if config.scale_in_float32 else dtype))
        )
        self.kind, self.eps = config.kind, config.eps

    def __call__(self, x: Float[Array, "T D"], num_tokens: Int[ArrayLike, ""], kernels: Kernels) -> Float[Array, "T D"]:
        weight = self.weight[...].astype(jnp.float32)
        heads, head_dim = weight.shape
        wide, rows = x.astype(jnp.float32).reshape(-1, head_dim), jnp.asarray(num_tokens) * heads
        if self.kind == "rms":
            normed = kernels.rms_norm(wide, jnp.ones(head_dim, jnp.float32), rows, eps=self.eps)
        else:
            normed = kernels.layer_norm(wide, None, None, rows, eps=self.eps)
        scaled: Array = normed.reshape(-1, heads, head_dim) * weight
        return scaled.astype(x.dtype).reshape(x.shape)


Norm = RMSNorm | LayerNorm | HeadNorm


def normed(norm: Norm | None, x: Float[Array, "T D"], at: LayerContext) -> Float[Array, "T D"]:
    """Return a layer's ``x`` after the norm, if there is one."""
    return x if norm is None else norm(x, at.num_tokens, at.kernels)


def summed(norm: Norm | None, x: Residual, num_tokens: Int[ArrayLike, ""], kernels: Kernels) -> Sum:
    """Return x as a sum, and what the norm makes of it, if there is one."""
    if not isinstance(x, Unsummed):
        return x, x if norm is None else norm(x, num_tokens, kernels)
    assert isinstance(norm, RMSNorm | LayerNorm), "only these add parts"
    return norm.of_sum(x, num_tokens, kernels)


def make_norm(config: NormConfig, width: int, *, dtype: str, stack: Shape = ()) -> Norm:
    """Return the norm that ``config`` describes; a late one has a float32 weight."""
    if config.kind == "rms":
        return RMSNorm(width, eps=config.eps, dtype="float32" if config.scale_in_float32 else dtype, stack=stack)
    return LayerNorm(config, width, dtype=dtype, stack=stack)
