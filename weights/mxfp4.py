"""MXFP4, in which gpt-oss stores its experts, to bfloat16, which holds every number of it. Host only, no jax.

32 consecutive inputs of an output share a power of two (OCP Microscaling Formats specification 1.0, 2023); each is one
of the 16 numbers of e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. Two to a byte, the first in the low bits.
"""

import ml_dtypes
import numpy as np
import numpy.typing as npt

GROUP = 32
"""Inputs that share a power of two."""
BLOCKS, SCALES = "_blocks", "_scales"
"""Suffixes of the names of the two tensors of a weight."""

_NUMBERS = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], ml_dtypes.bfloat16)
_SIGNED = np.concatenate([_NUMBERS, -_NUMBERS])
_BIAS = 127
_MANTISSA = 7
"""Bits of it in bfloat16, below those of the exponent."""


def weight_shape(blocks: tuple[int, ...], scales: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape [E, I, O] of the weights in these tensors; None if they do not fit each other."""
    if len(blocks) != 4 or blocks[:3] != scales or blocks[3] * 2 != GROUP:
        return None
    experts, outputs, groups, _ = blocks
    return (experts, groups * GROUP, outputs)


def dequantized(blocks: npt.NDArray[np.uint8], scales: npt.NDArray[np.uint8]) -> npt.NDArray[np.generic]:
    """Return the weights bfloat16 [E, I, O] of blocks [E, O, I / 32, 16] and scales [E, O, I / 32]."""
    experts, outputs, groups, _ = blocks.shape
    found = np.empty((experts, outputs, groups, GROUP), ml_dtypes.bfloat16)
    for expert in range(experts):  # one at a time, so that what is between is small
        codes = np.stack([blocks[expert] & 15, blocks[expert] >> 4], axis=-1).reshape(outputs, groups, GROUP)
        found[expert] = _scaled(codes, scales[expert][..., None])
    return found.reshape(experts, outputs, groups * GROUP).swapaxes(1, 2)


def _scaled(codes: npt.NDArray[np.uint8], scales: npt.NDArray[np.uint8]) -> npt.NDArray[np.generic]:
    if scales.min() < 2 or scales.max() > 251:  # smaller than normal numbers, or past the greatest
        exact = np.ldexp(_SIGNED.astype(np.float64)[codes], scales.astype(np.int32) - _BIAS)
        with np.errstate(over="ignore"):
            return exact.astype(ml_dtypes.bfloat16)
    # A power of two is added to the exponent's bits; zero has none.
    bits = _SIGNED.view(np.uint16)[codes]
    shift = (scales.astype(np.int32) - _BIAS) << _MANTISSA
    moved: npt.NDArray[np.generic] = np.where(codes & 7, bits + shift, bits).astype(np.uint16).view(ml_dtypes.bfloat16)
    return moved
