"""MXFP4, in which gpt-oss stores its experts, to bfloat16, which holds every number of it. Host only, no jax.

32 consecutive inputs of an output share a power of two (OCP Microscaling Formats specification 1.0, 2023); each is one
of the 16 numbers of e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. Two to a byte, the first in the low bits.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from jaxgen.weights.config_fields import Fields
from jaxgen.weights.encodings.encoding import RawWeight, Shape, expect
from jaxgen.weights.safetensors_files import SafetensorsFiles, Tensor
from jaxgen.weights.tensors import Array

GROUP = 32
"""Inputs that share a power of two."""
BLOCKS, SCALES = "_blocks", "_scales"
"""Suffixes of the names of the two tensors of a weight."""

_NUMBERS = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], ml_dtypes.bfloat16)
_SIGNED = np.concatenate([_NUMBERS, -_NUMBERS])
_BIAS = 127
_MANTISSA = 7
"""Bits of it in bfloat16, below those of the exponent."""


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """Blocks uint8 [experts, out, in / 32, 16], and scales uint8 [experts, out, in / 32]."""

    title: str = "MXFP4"
    unread: re.Pattern[str] | None = None

    def parts(self, name: str, files: SafetensorsFiles) -> dict[str, str] | None:
        """As in Encoding."""
        return {"codes": f"{name}{BLOCKS}", "scales": f"{name}{SCALES}"} if f"{name}{BLOCKS}" in files else None

    def kept_as(self, headers: Mapping[str, Tensor], shape: Shape) -> None:
        """As in Encoding."""
        *outer, inputs = shape
        if inputs % GROUP:
            raise ValueError(f"has {inputs} inputs, which blocks of {GROUP} do not make up")
        expect("blocks", headers["codes"], ("U8",), (*outer, inputs // GROUP, GROUP // 2))
        expect("scales", headers["scales"], ("U8",), (*outer, inputs // GROUP))

    def read(self, raw: RawWeight) -> Array:
        """As in Encoding."""
        return dequantized(raw.tensors["codes"].view(np.uint8), raw.tensors["scales"].view(np.uint8))


def read_mxfp4(fields: Fields) -> tuple[Mxfp4, ...]:
    """Return the encoding."""
    del fields
    return (Mxfp4(),)


def dequantized(blocks: npt.NDArray[np.uint8], scales: npt.NDArray[np.uint8]) -> npt.NDArray[np.generic]:
    """Return the weights bfloat16 [E, O, I] of blocks [E, O, I / 32, 16] and scales [E, O, I / 32]."""
    experts, outputs, groups, _ = blocks.shape
    found: npt.NDArray[Any] = np.empty((experts, outputs, groups, GROUP), ml_dtypes.bfloat16)
    for expert in range(experts):  # one at a time, so that what is between is small
        codes = np.stack([blocks[expert] & 15, blocks[expert] >> 4], axis=-1).reshape(outputs, groups, GROUP)
        found[expert] = _scaled(codes, scales[expert][..., None])
    return found.reshape(experts, outputs, groups * GROUP)


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
