"""MXFP4 of weights, as gpt-oss stores its experts. Needs no torch.

32 consecutive inputs of a row share one power of two (OCP Microscaling Formats specification 1.0, 2023); each is one of
the 16 numbers of e2m1. Two to a byte, the first in the low bits.
"""

import numpy as np
import numpy.typing as npt

GROUP = 32
BIAS = 127
NUMBERS = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
"""Of the codes 0 to 7; 8 more is the negative."""

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


def quantize(weights: Floats) -> tuple[Bytes, Bytes]:
    """Round weights float32 [..., K] to blocks uint8 [..., K / 32, 16] and scales uint8 [..., K / 32]."""
    groups = weights.reshape(*weights.shape[:-1], -1, GROUP)
    largest = np.maximum(np.abs(groups).max(-1), np.finfo(np.float32).tiny)
    # 4 is the largest power of two of e2m1.
    scales = np.clip(np.floor(np.log2(largest)) - 2 + BIAS, 0, 254).astype(np.uint8)
    scaled = groups / _power(scales)
    codes = np.abs(np.abs(scaled)[..., None] - NUMBERS).argmin(-1).astype(np.uint8)
    codes |= np.where(np.signbit(scaled), 8, 0).astype(np.uint8)
    return (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8), scales


def dequantize(blocks: Bytes, scales: Bytes) -> Floats:
    """Return the weights float32 [..., K] that blocks and scales stand for."""
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], GROUP)
    numbers = np.where(codes & 8, -1, 1) * NUMBERS[codes & 7] * _power(scales)
    return numbers.reshape(*numbers.shape[:-2], -1).astype(np.float32)


def _power(scales: Bytes) -> Floats:
    return np.ldexp(np.float32(1), scales.astype(np.int32) - BIAS)[..., None].astype(np.float32)
