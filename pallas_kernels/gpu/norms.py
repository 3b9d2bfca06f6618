"""Norms over the last axis for NVIDIA GPUs: a row's sums have one order, however many rows there are.

XLA gives a norm other warps at other numbers of rows, and so another order of a row's sums. Here a warpgroup reads a
whole row, or a tile of short rows. What it adds to what depends on the row's length alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.gpu.norm_support import SHORT, TILE, supports
from pallas_kernels.gpu.persistent import CTA, H200_MULTIPROCESSORS, CtaItems, Interpret, Ref, put, repeat

CTAS_EACH = 4
"""Thread blocks of one warpgroup for each multiprocessor: a norm waits for memory most of its time."""


def rms_norm(
    x: Float[Array, "T D"],
    weight: Float[Array, "D"],
    num_tokens: Int[Array, ""],
    *,
    eps: float,
    num_ctas: int = H200_MULTIPROCESSORS,
    interpret: Interpret = None,
) -> Float[Array, "T D"]:
    """Return x / rms(x) times the weight; see rms_norm_ref.

    Raises NotImplementedError with the reason of ``norm_support.supports`` for rows that it does not take.
    """
    walk = _Walk(x, num_tokens, num_ctas, interpret)
    return walk.run("rms_norm", _rms_norm(x, weight, eps), (weight,))[0]


def layer_norm(
    x: Float[Array, "T D"],
    weight: Float[Array, "D"] | None,
    bias: Float[Array, "D"] | None,
    num_tokens: Int[Array, ""],
    *,
    eps: float,
    num_ctas: int = H200_MULTIPROCESSORS,
    interpret: Interpret = None,
) -> Float[Array, "T D"]:
    """Return (x - mean) / std * weight + bias; see layer_norm_ref, and rms_norm for the errors."""
    walk = _Walk(x, num_tokens, num_ctas, interpret)
    return walk.run("layer_norm", _layer_norm(weight, bias, eps), _present(weight, bias))[0]


def add_rms_norm(
    residual: Float[Array, "T D"],
    parts: Float[Array, "P T D"],
    weight: Float[Array, "D"],
    num_tokens: Int[Array, ""],
    *,
    eps: float,
    num_ctas: int = H200_MULTIPROCESSORS,
    interpret: Interpret = None,
) -> tuple[Float[Array, "T D"], Float[Array, "T D"]]:
    """Return the residual plus the sum of the parts, and its norm; see add_rms_norm_ref, and rms_norm for the
    errors."""
    walk = _Walk(residual, num_tokens, num_ctas, interpret)
    total, normed = walk.run("add_rms_norm", _rms_norm(residual, weight, eps), (weight,), parts)
    return total, normed


def add_layer_norm(
    residual: Float[Array, "T D"],
    parts: Float[Array, "P T D"],
    weight: Float[Array, "D"] | None,
    bias: Float[Array, "D"] | None,
    num_tokens: Int[Array, ""],
    *,
    eps: float,
    num_ctas: int = H200_MULTIPROCESSORS,
    interpret: Interpret = None,
) -> tuple[Float[Array, "T D"], Float[Array, "T D"]]:
    """Return the residual plus the sum of the parts, and its norm; see add_layer_norm_ref, and rms_norm for the
    errors."""
    walk = _Walk(residual, num_tokens, num_ctas, interpret)
    total, normed = walk.run("add_layer_norm", _layer_norm(weight, bias, eps), _present(weight, bias), parts)
    return total, normed


@dataclass(frozen=True)
class _Rows:
    """How a warpgroup holds what it normalises at a time: one long row, or TILE short ones."""

    width: int

    @property
    def is_tile(self) -> bool:
        return self.width <= SHORT

    @property
    def together(self) -> int:
        return TILE if self.is_tile else 1

    def padded(self, x: Float[Array, "... T D"]) -> Float[Array, "... R D"]:
        """Return x with whole items of rows."""
        missing = -x.shape[-2] % self.together
        return jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, missing), (0, 0)]) if missing else x

    def at(self, ref: Ref, item: Int[Array, ""]) -> Ref:
        """Return item number ``item`` of rows in global memory."""
        return ref.at[pl.ds(item * TILE, TILE)] if self.is_tile else ref.at[item]

    def load(self, ref: Ref) -> Array:
        loaded: Array = plgpu.load(ref, layout=plgpu.Layout.WGMMA if self.is_tile else None, optimized=False)
        return loaded

    def weight(self, ref: Ref) -> Array:
        """Return a number for each column, in the layout of the rows."""
        if not self.is_tile:
            return self.load(ref)
        loaded = plgpu.load(ref, layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)
        return lax.broadcast_in_dim(loaded, (TILE, self.width), (1,))

    def mean(self, wide: Array) -> Array:
        """Return each row's mean, in the layout of the rows."""
        if not self.is_tile:
            return jnp.sum(wide) / self.width
        return lax.broadcast_in_dim(jnp.sum(wide, axis=1) / self.width, wide.shape, (0,))


_Norm = Callable[..., Array]
"""(rows, their numbers in float32, references of the weights) -> the norm, before it is rounded."""


def _rms_norm(x: Float[Array, "T D"], weight: Float[Array, "D"], eps: float) -> _Norm:
    if weight.dtype not in (x.dtype, jnp.float32):
        raise ValueError(f"a norm's weight is {weight.dtype}, neither {x.dtype} nor float32")

    def norm(rows: _Rows, wide: Array, weight_ref: Ref) -> Array:
        scale = lax.rsqrt(rows.mean(wide * wide) + eps)
        factors = rows.weight(weight_ref)
        return factors * (wide * scale).astype(factors.dtype)

    return norm


def _layer_norm(weight: Float[Array, "D"] | None, bias: Float[Array, "D"] | None, eps: float) -> _Norm:
    has_weight, has_bias = weight is not None, bias is not None

    def norm(rows: _Rows, wide: Array, *refs: Ref) -> Array:
        wide = wide - rows.mean(wide)
        wide = wide * lax.rsqrt(rows.mean(wide * wide) + eps)
        if has_weight:
            wide = wide * rows.weight(refs[0]).astype(jnp.float32)
        return wide + rows.weight(refs[-1]).astype(jnp.float32) if has_bias else wide

    return norm


def _present(*weights: Float[Array, "D"] | None) -> tuple[Float[Array, "D"], ...]:
    return tuple(weight for weight in weights if weight is not None)


@dataclass(frozen=True, eq=False)
class _Walk:
    """A persistent grid over the rows of ``x`` that are not padding."""

    x: Float[Array, "T D"]
    num_tokens: Int[Array, ""]
    num_ctas: int
    interpret: Interpret

    def run(
        self,
        name: str,
        norm: _Norm,
        weights: tuple[Float[Array, "D"], ...],
        parts: Float[Array, "P T D"] | None = None,
    ) -> list[Float[Array, "T D"]]:
        """Return the norm of x, or with ``parts`` their sum with x and its norm."""
        if reason := supports(width=self.x.shape[1]):
            raise NotImplementedError(reason)
        rows, ctas, dtype = _Rows(self.x.shape[1]), CTAS_EACH * self.num_ctas, self.x.dtype
        x, given = rows.padded(self.x), () if parts is None else (rows.padded(parts),)
        results = 1 + len(given)

        def body(count_ref: Ref, x_ref: Ref, *refs: Ref) -> None:
            part_refs, weight_refs, out_refs = refs[: len(given)], refs[len(given) : -results], refs[-results:]
            items = CtaItems(lax.div(count_ref[0] + rows.together - 1, jnp.int32(rows.together)), ctas)

            def one(i: Int[Array, ""]) -> None:
                numbers = rows.load(rows.at(x_ref, items[i]))
                for parts_ref in part_refs:
                    numbers = numbers + _total(rows, parts_ref, items[i]).astype(dtype)
                    put(rows.at(out_refs[0], items[i]), numbers)
                normed = norm(rows, numbers.astype(jnp.float32), *weight_refs)
                put(rows.at(out_refs[-1], items[i]), normed.astype(dtype))

            repeat(0, items.mine, one)

        out = jax.ShapeDtypeStruct(x.shape, dtype)
        found: list[Array] = plgpu.kernel(
            body,
            out_type=[out] * results,
            grid=(ctas,),
            grid_names=(CTA,),
            compiler_params=plgpu.CompilerParams(),
            interpret=self.interpret,
            kernel_name=name,
        )(jnp.asarray(self.num_tokens, jnp.int32).reshape(1), x, *given, *weights)
        return [one[: len(self.x)] for one in found]


def _total(rows: _Rows, parts_ref: Ref, item: Int[Array, ""]) -> Array:
    """Return the sum of the parts of an item of rows, from the first to the last."""
    total = rows.load(rows.at(parts_ref.at[0], item))
    for part in range(1, parts_ref.shape[0]):
        total = total + rows.load(rows.at(parts_ref.at[part], item))
    return total
