"""MXFP4, in which gpt-oss stores its experts. Host only, no jax.

32 consecutive inputs of an output share a power of two (OCP Microscaling Formats specification 1.0, 2023); each is one
of the 16 numbers of e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. Two to a byte, the first in the low bits.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from jaxgen.core.quantization import GroupedWeight, WeightFormat
from jaxgen.weights.encodings.encoding import RawWeight, Shape, expect
from jaxgen.weights.families.config_fields import JsonFields
from jaxgen.weights.files.safetensors import SafetensorsFiles, Tensor

BLOCKS, SCALES = "_blocks", "_scales"
"""Suffixes of the names of the two tensors of a weight."""
_GROUP = 32
"""Inputs that share a power of two."""
FORMAT = WeightFormat(4, _GROUP, floats=True)


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """Blocks uint8 [experts, out, in / 32, 16], and scales uint8 [experts, out, in / 32]."""

    title: str = "MXFP4"
    unread: re.Pattern[str] | None = None

    def parts(self, name: str, files: SafetensorsFiles) -> dict[str, str] | None:
        """See Encoding.parts."""
        return {"codes": f"{name}{BLOCKS}", "scales": f"{name}{SCALES}"} if f"{name}{BLOCKS}" in files else None

    def kept_as(self, headers: Mapping[str, Tensor], shape: Shape) -> WeightFormat:
        """See Encoding.kept_as."""
        *outer, inputs = shape
        if inputs % _GROUP:
            raise ValueError(f"has {inputs} inputs, which must be a multiple of {_GROUP}")
        expect("blocks", headers["codes"], ("U8",), (*outer, inputs // _GROUP, _GROUP // 2))
        expect("scales", headers["scales"], ("U8",), (*outer, inputs // _GROUP))
        return FORMAT

    def read(self, raw: RawWeight) -> GroupedWeight:
        """See Encoding.read."""
        codes = raw.tensors["codes"].view(np.uint8)
        scales = powers_of_two(raw.tensors["scales"].view(np.uint8))
        if np.isnan(scales).any():
            raise ValueError("has scales that are not finite")
        return GroupedWeight(FORMAT, codes.reshape(*codes.shape[:-2], -1), scales)


def powers_of_two(exponents: npt.NDArray[np.uint8]) -> npt.NDArray[np.generic]:
    """Return scales in bfloat16 of bytes that are exponents, of which 255 is not finite."""
    scales: npt.NDArray[np.generic] = exponents.view(ml_dtypes.float8_e8m0fnu).astype(ml_dtypes.bfloat16)
    return scales


def read_mxfp4(fields: JsonFields) -> tuple[Mxfp4, ...]:
    """Return the encoding."""
    del fields
    return (Mxfp4(),)
