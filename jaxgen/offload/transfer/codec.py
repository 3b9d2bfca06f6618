"""Formats of blocks in host memory: unchanged, or group-wise quantised (FlexGen, arXiv 2303.06865, section 5).

Groups of up to 64 neighbouring elements of a head are stored as unsigned integers between the group's least and
greatest value: x is about least + scale * code. Scale and least value are float16, and codes are computed from their
rounded values.
"""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num, UInt8

from jaxgen.arrays import ArrayLike
from jaxgen.core.host_dtype import BITS, HostDType, group_of

_F16_MAX = 65504.0
_BITS_OF_BYTE = 8


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Quantised:
    """One block: codes, of which several share a byte if they have fewer bits, and each group's scale and least."""

    codes: UInt8[ArrayLike, "L P K B bytes"]
    scale: Float[ArrayLike, "L P K B groups"]
    least: Float[ArrayLike, "L P K B groups"]
    bits: int = field(metadata={"static": True})


Piece = Array | Quantised
"""One block in the format of host memory."""


def encode(block: Num[Array, "L P K B D"], host_dtype: HostDType) -> Piece:
    """Return the block in the format of host memory; blocks of codes are kept as they are (auto)."""
    bits = BITS[host_dtype]
    if bits is None:
        return block
    D = block.shape[-1]
    group = group_of(D)
    groups = jnp.clip(block.astype(jnp.float32), -_F16_MAX, _F16_MAX).reshape(*block.shape[:-1], D // group, group)
    least = _rounded(groups.min(axis=-1), up=False)
    top = 2**bits - 1
    scale = _rounded((groups.max(axis=-1) - least.astype(jnp.float32)) / top, up=True)
    steps = (groups - least.astype(jnp.float32)[..., None]) / jnp.maximum(scale.astype(jnp.float32), 1e-12)[..., None]
    codes = jnp.clip(jnp.round(steps), 0, top).astype(jnp.uint8).reshape(block.shape)
    return Quantised(_pack(codes, bits), scale, least, bits)


def decode(piece: Piece, like: jax.ShapeDtypeStruct) -> Num[Array, "L P K B D"]:
    """Return the block in the shape and dtype of ``like``, exact to half of each group's scale and rounding."""
    if not isinstance(piece, Quantised):
        return piece
    codes = _unpack(piece.codes, piece.bits).astype(jnp.float32)
    groups = codes.reshape(*piece.scale.shape, -1)
    values = groups * piece.scale.astype(jnp.float32)[..., None] + piece.least.astype(jnp.float32)[..., None]
    values = jnp.clip(values, -_F16_MAX, _F16_MAX)  # a scale that was rounded up leads beyond, in float16 to infinity
    return values.reshape(like.shape).astype(like.dtype)


def _rounded(values: Float[Array, "*groups"], *, up: bool) -> Float[Array, "*groups"]:
    """Round to float16, up or down and never to the other side."""
    nearest = values.astype(jnp.float16)
    wrong = nearest.astype(jnp.float32) < values if up else nearest.astype(jnp.float32) > values
    beyond = jnp.nextafter(nearest, jnp.float16(jnp.inf if up else -jnp.inf))
    return jnp.where(wrong, beyond, nearest)


def _pack(codes: UInt8[Array, "*block D"], bits: int) -> UInt8[Array, "*block bytes"]:
    """Pack the first half of a head's codes in the low bits and the second half in the high bits."""
    if bits == _BITS_OF_BYTE:
        return codes
    low, high = jnp.split(codes, 2, axis=-1)
    return low | (high << bits)


def _unpack(packed: UInt8[Array, "*block bytes"], bits: int) -> UInt8[Array, "*block D"]:
    if bits == _BITS_OF_BYTE:
        return packed
    return jnp.concatenate([packed & (2**bits - 1), packed >> bits], axis=-1)
