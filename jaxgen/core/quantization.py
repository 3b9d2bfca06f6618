"""How weights of few bits are kept. Host only, no jax."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Bits = Literal[4, 8]
ScaleDType = Literal["bfloat16", "float32"]
Quantization = Literal["none", "int8", "int4"]
QUANTIZATIONS: tuple[Quantization, ...] = ("none", "int8", "int4")


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A weight as codes of ``bits`` bits: ``(code - zero) * scale``, by output and ``group`` consecutive inputs.

    ``group``: None: all inputs of an output. ``zeros``: whether zero points are stored; without them 8 or 128 means 0.
    ``ordered``: whether inputs are in an order of their own, which is stored with the weight.
    """

    bits: Bits
    group: int | None
    scale_dtype: ScaleDType = "bfloat16"
    zeros: bool = False
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """A parameter in a WeightFormat, in host memory, before it is placed where programs read it.

    ``codes``: uint8 [*stack, O, I] of 8 bits, or [*stack, O, I / 2] of 4, where input 2 i is in the low half of byte i.
    ``scales``: [*stack, O, G] in the format's dtype. ``zeros``: uint8 [*stack, O, G]. ``order``: int32 [*stack, I], the
    input of the product that each input of the codes is. The stack is of layers, or of layers and experts.
    """

    format: WeightFormat
    codes: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.generic]
    zeros: npt.NDArray[np.uint8] | None = None
    order: npt.NDArray[np.int32] | None = None

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.codes, self.scales, self.zeros, self.order) if part is not None)

    def dequantized(self, index: tuple[int, ...] = ()) -> npt.NDArray[np.float32]:
        """Return the numbers [*stack, O, I], or those of one weight of the stack."""
        about, codes = self.format, self.codes[index]
        if about.bits == 4:
            codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], -1)
        inputs = codes.shape[-1]

        def by_input(values: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
            each = values[index].astype(np.float32)
            return np.repeat(each, about.group or inputs, axis=-1)[..., :inputs]

        zero = np.float32(1 << (about.bits - 1)) if self.zeros is None else by_input(self.zeros)
        found = (codes.astype(np.float32) - zero) * by_input(self.scales)
        if self.order is None:
            return found
        places = np.argsort(self.order[index], axis=-1)[..., None, :]
        return np.take_along_axis(found, places, axis=-1)
