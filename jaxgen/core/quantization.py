"""How weights of few bits are kept. Host only, no jax."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal, Self

import ml_dtypes
import numpy as np
import numpy.typing as npt

Bits = Literal[4, 8]
ScaleDType = Literal["bfloat16", "float32"]
SCALE_DTYPES: dict[ScaleDType, np.dtype[np.generic]] = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
}
Quantization = Literal["none", "int8", "int4", "fp8", "fp4"]
QUANTIZATIONS: tuple[Quantization, ...] = ("none", "int8", "int4", "fp8", "fp4")
FLOATS: dict[Bits, np.dtype[np.generic]] = {
    8: np.dtype(ml_dtypes.float8_e4m3fn),
    4: np.dtype(ml_dtypes.float4_e2m1fn),
}
"""Floating-point numbers that codes of so many bits may be."""
_GROUPS = 128
"""Larger groups are of so many inputs, or a multiple of them."""
Index = tuple[int | slice, ...]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A weight as codes of ``bits`` bits: ``(code - zero) * scale``, by output and ``group`` consecutive inputs.

    ``group``: None: all inputs of an output; the last group may be shorter than the others. ``zeros``: whether zero
    points are stored; without them 8 or 128 means 0. ``ordered``: whether inputs are in an order of their own, which is
    stored with the weight. ``floats``: whether codes are small floating-point numbers (FLOATS), which have no zero
    points: ``number * scale``.
    """

    bits: Bits
    group: int | None
    scale_dtype: ScaleDType = "bfloat16"
    zeros: bool = False
    ordered: bool = False
    floats: bool = False

    @property
    def title(self) -> Literal["int8", "int4", "fp8", "fp4"]:
        """What the codes are called."""
        if self.floats:
            return "fp8" if self.bits == 8 else "fp4"
        return "int8" if self.bits == 8 else "int4"

    @property
    def as_integers(self) -> "WeightFormat | None":
        """The format of integers that holds every weight of this one; None: there is none, or it is one."""
        return replace(self, bits=8, floats=False) if self.floats and self.bits == 4 else None

    def placed(self, *, integers: bool, floats: bool) -> "WeightFormat | None":
        """Return the format of a weight where programs read it, which multiply codes that are ``integers``, or floats.

        None: it becomes numbers of the model's dtype.
        """
        if floats if self.floats else integers:
            return self
        return self.as_integers if integers else None

    @property
    def zero(self) -> int:
        """The code that means 0 where no zero points are stored."""
        return 1 << (self.bits - 1)

    @property
    def is_computed(self) -> bool:
        """Whether products are computed with weights in this format: the sizes of groups are limited."""
        return self.group is None or (self.group % 8 == 0 and (self.group <= _GROUPS or self.group % _GROUPS == 0))

    def num_groups(self, inputs: int) -> int:
        """Return how many groups share a scale in an output of so many inputs."""
        return 1 if self.group is None else -(-inputs // self.group)

    def num_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a weight [*stack, O, I] with its scales, zero points and order."""
        return sum(prod(size) * dtype.itemsize for size, dtype in self.arrays(shape).values())

    def arrays(self, shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]]:
        """Return shape and dtype of each array of a weight [*stack, O, I], by its name in GroupedWeight."""
        *outer, inputs = shape
        of_groups = (*outer, self.num_groups(inputs))
        byte = np.dtype(np.uint8)
        return {
            "codes": ((*outer, inputs * self.bits // 8), byte),
            "scales": (of_groups, SCALE_DTYPES[self.scale_dtype]),
            **({"zeros": (of_groups, byte)} if self.zeros else {}),
            **({"order": ((*outer[:-1], inputs), np.dtype(np.int32))} if self.ordered else {}),
        }


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

    @classmethod
    def empty(cls, form: WeightFormat, shape: tuple[int, ...]) -> Self:
        """Return a weight [*stack, O, I] whose arrays have no values yet."""
        arrays: dict[str, Any] = {name: np.empty(size, dtype) for name, (size, dtype) in form.arrays(shape).items()}
        return cls(form, **arrays)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight that this is, [*stack, O, I]."""
        *outer, columns = self.codes.shape
        return (*outer, columns * 8 // self.format.bits)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for _, part in self.arrays())

    def arrays(self) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
        """Yield the arrays that there are, by name."""
        for name in ("codes", "scales", "zeros", "order"):
            if (part := getattr(self, name)) is not None:
                yield name, part

    def in_order(self) -> Self:
        """Return the same weight with an order that is stored, if it is none yet."""
        if self.order is not None:
            return self
        inputs = self.shape[-1]
        order = np.broadcast_to(np.arange(inputs, dtype=np.int32), (*self.shape[:-2], inputs))
        return replace(self, format=replace(self.format, ordered=True), order=order)

    def as_integers(self) -> "GroupedWeight":
        """Return a weight of FP4 as one of 8 bits: twice each number is an integer."""
        form = self.format.as_integers
        half: Any = self.scales.dtype.type(0.5)
        assert form is not None
        twice = (2 * _table(self.format) + form.zero).astype(np.uint8)
        codes = np.empty(self.shape, np.uint8)
        for index in np.ndindex(*self.shape[:-2]):  # a matrix at a time, so that what is between is small
            codes[index] = twice[unpacked(self.codes[index], self.format)]
        return replace(self, format=form, codes=codes, scales=self.scales * half)

    def take(self, outputs: npt.NDArray[np.intp]) -> Self:
        """Return the weight of these outputs, in this order."""
        parts = {name: np.take(part, outputs, axis=-2) for name, part in self.arrays() if name != "order"}
        changes: dict[str, Any] = dict(parts)
        return replace(self, **changes)

    def __setitem__(self, place: Index, part: "GroupedWeight") -> None:
        """Put a weight of the same format at a place: an index of the stack, and then perhaps a slice of outputs."""
        stack = len(self.shape) - 2
        for name, array in self.arrays():
            array[place[:stack] if name == "order" else place] = getattr(part, name)

    def dequantized(self, index: Index = ()) -> npt.NDArray[np.float32]:
        """Return the numbers [*stack, O, I], or those of one matrix of the stack, or of some of its outputs."""
        form, codes, inputs = self.format, self.codes[index], self.shape[-1]

        def by_input(values: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
            each = values[index].astype(np.float32)
            return each if form.group is None else np.repeat(each, form.group, axis=-1)[..., :inputs]

        numbers = numbers_of(unpacked(codes, form), form)
        if not form.floats:
            numbers -= np.float32(form.zero) if self.zeros is None else by_input(self.zeros)
        numbers *= by_input(self.scales)
        if self.order is None:
            return numbers
        places = np.argsort(self.order[index[: len(self.shape) - 2]], axis=-1)[..., None, :]
        return np.take_along_axis(numbers, places, axis=-1)


def packed(codes: npt.NDArray[np.uint8], form: WeightFormat) -> npt.NDArray[np.uint8]:
    """Return codes [..., I] as bytes of a GroupedWeight."""
    return codes if form.bits == 8 else codes[..., ::2] | (codes[..., 1::2] << np.uint8(4))


def unpacked(codes: npt.NDArray[np.uint8], form: WeightFormat) -> npt.NDArray[np.uint8]:
    """Return codes [..., I] of the bytes of a GroupedWeight."""
    if form.bits == 8:
        return codes
    return np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], -1)


def numbers_of(codes: npt.NDArray[np.uint8], form: WeightFormat) -> npt.NDArray[np.float32]:
    """Return codes [..., I] of a byte each as numbers, before zero points and scales."""
    if not form.floats:
        return codes.astype(np.float32)
    found: npt.NDArray[np.float32] = _table(form)[codes]
    return found


def _table(form: WeightFormat) -> npt.NDArray[np.float32]:
    """Return the number of each floating-point code."""
    return np.arange(1 << form.bits, dtype=np.uint8).view(FLOATS[form.bits]).astype(np.float32)
