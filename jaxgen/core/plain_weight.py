"""Weights that are numbers next to others that are codes: layers that a checkpoint has not quantised. Host only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, Self

import ml_dtypes
import numpy as np
import numpy.typing as npt

_DTYPES: dict[str, np.dtype[np.generic]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
_NUMBERS = "numbers"


@dataclass(frozen=True, slots=True)
class PlainFormat:
    """A part of a weight as numbers of ``dtype``, which is the model's. It has the methods of a WeightFormat."""

    dtype: Literal["float32", "bfloat16", "float16"]

    def placed(self, *, integers: Sequence[int], floats: bool) -> Self:
        """Return the format itself: programs read numbers wherever they read codes."""
        del integers, floats
        return self

    def num_bytes(self, shape: tuple[int, ...]) -> int:
        """See ``WeightFormat.num_bytes``."""
        return prod(shape) * _DTYPES[self.dtype].itemsize

    def arrays(self, shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]]:
        """See ``WeightFormat.arrays``."""
        return {_NUMBERS: (shape, _DTYPES[self.dtype])}


@dataclass(frozen=True, slots=True)
class PlainWeight:
    """A part [layers, *experts, O, I] of a weight, in host memory, with the methods of a GroupedWeight."""

    format: PlainFormat
    numbers: npt.NDArray[np.generic]

    @classmethod
    def empty(cls, form: PlainFormat, shape: tuple[int, ...]) -> Self:
        """Return a weight whose array has no values yet."""
        return cls(form, np.empty(shape, _DTYPES[form.dtype]))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.numbers.shape

    @property
    def nbytes(self) -> int:
        return self.numbers.nbytes

    def arrays(self) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
        """Yield the array by its name."""
        yield _NUMBERS, self.numbers

    def as_placed(self, form: PlainFormat) -> "PlainWeight":
        """Return the weight in the dtype of another format."""
        return PlainWeight(form, self.numbers.astype(_DTYPES[form.dtype], copy=False))

    def __setitem__(self, place: Any, part: npt.NDArray[np.generic]) -> None:
        """Put numbers at a place: an index of the stack, and then perhaps a slice of outputs."""
        self.numbers[place] = part

    def dequantized(self, index: Any = ()) -> npt.NDArray[np.float32]:
        """Return the numbers, or those of one matrix of the stack."""
        return self.numbers[index].astype(np.float32)
