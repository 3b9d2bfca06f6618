"""Codes of 8 bits and their scales from the definition, in float64."""

import numpy as np


def code_values(codes: str) -> np.ndarray:
    """What each of the 256 bytes means: an integer, or a float8_e4m3fn, whose largest codes are NaN."""
    byte = np.arange(256)
    if codes == "int8":
        return np.where(byte < 128, byte, byte - 256).astype(np.float64)
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    size[byte & 127 == 127] = np.nan
    return np.where(byte < 128, size, -size)


def nearest_codes(x: np.ndarray, codes: str) -> tuple[np.ndarray, np.ndarray]:
    """Bytes whose values times the scale are nearest to ``x``, of two such the even one; and each row's scale, a
    float32. -128 is not used. A row of zeros has scale 0; one with a NaN has a scale that is none."""
    values = code_values(codes)
    largest = {"int8": 127, "fp8": 448}[codes]
    scale = np.abs(x).max(-1, keepdims=True).astype(np.float32) * np.float32(1 / largest)
    with np.errstate(invalid="ignore", divide="ignore"):
        steps = np.where(scale == 0, 0, x.astype(np.float32) * (1 / scale)).astype(np.float64)
    usable = np.flatnonzero(np.isfinite(values) & (values >= -largest))
    usable = usable[np.argsort(values[usable], kind="stable")]
    ladder = values[usable]
    above = np.clip(np.searchsorted(ladder, steps), 1, len(ladder) - 1)
    low, high = ladder[above - 1], ladder[above]
    to_low, to_high = steps - low, high - steps
    even = usable[above] % 2 == 0
    take_high = (to_high < to_low) | ((to_high == to_low) & even)
    found = usable[np.where(take_high, above, above - 1)]
    zero = np.where(np.signbit(x) & (codes == "fp8"), 0x80, 0) * (scale > 0)
    return np.where(values[found] == 0, zero, found), scale
