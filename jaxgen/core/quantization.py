"""Describe how quantized weights are kept. Host only, no jax."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal, Self

import ml_dtypes
import numpy as np
import numpy.typing as npt

Bits = Literal[2, 4, 5, 6, 8]
PLANES: dict[Bits, tuple[int, ...]] = {2: (2,), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}
"""Widths of the parts of which a code is made, its lowest bits first: a byte has parts of one width."""
NATIVE_BITS, PLAIN_BITS = tuple(PLANES), (4, 8)
"""Bits of the integers that native kernels multiply, and that XLA multiplies on GPUs."""
ScaleDType = Literal["bfloat16", "float16", "float32"]
SCALE_DTYPES: dict[ScaleDType, np.dtype[np.generic]] = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
}
BLOCK = 256
"""Inputs whose groups share a float, where scales are integers: super-blocks of llama.cpp's K types."""
Quantization = Literal["none", "int8", "int4", "fp8", "fp8_dynamic", "fp4"]
QUANTIZATIONS: tuple[Quantization, ...] = ("none", "int8", "int4", "fp8", "fp8_dynamic", "fp4")
STORED_AS: dict[Quantization, Quantization] = {"fp8_dynamic": "fp8"}
"""Quantizations that choose more than how weights are stored, and which weights they have."""
FLOATS: dict[int, np.dtype[np.generic]] = {
    8: np.dtype(ml_dtypes.float8_e4m3fn),
    4: np.dtype(ml_dtypes.float4_e2m1fn),
}
"""Floating-point types of codes, by bits."""
_GROUPS = 128
"""Larger groups have a multiple of this number of inputs."""
Index = tuple[int | slice, ...]
ARRAYS = ("codes", "scales", "zeros", "order", "minimums", "block_scales", "block_minimums")
"""Names of all arrays that a weight may have."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A weight as codes of ``bits`` bits: ``(code - zero) * scale``, by output and ``group`` consecutive inputs.

    ``group``: None: all inputs of an output; the last group may be shorter than the others. ``zeros``: whether zero
    points are stored; without them the code in the middle means 0. ``ordered``: whether inputs are in an order of their
    own, which is stored with the weight. ``floats``: whether codes are small floating-point numbers (FLOATS), which
    have no zero points: ``number * scale``. ``minimums``: the weight is ``code * scale + minimum``, and no code is a
    zero point. ``blocks``: scales and minimums are integers of 8 bits, each times a float of its BLOCK of inputs.
    """

    bits: Bits
    group: int | None
    scale_dtype: ScaleDType = "bfloat16"
    zeros: bool = False
    ordered: bool = False
    floats: bool = False
    minimums: bool = False
    blocks: bool = False

    @property
    def forms(self) -> "tuple[WeightFormat, ...]":
        """The formats of all parts: there is one."""
        return (self,)

    def at(self, place: Index) -> "WeightFormat":
        """Return the format of a part of a weight."""
        del place
        return self

    @property
    def title(self) -> str:
        """The name of the codes by their bits: int8, int4, fp8, fp4, and others that no quantization makes."""
        return f"{'fp' if self.floats else 'int'}{self.bits}"

    @property
    def unit(self) -> int:
        """The fewest inputs whose codes are whole words of 32 bits."""
        return 32 // min(PLANES[self.bits])

    @property
    def as_integers(self) -> "WeightFormat | None":
        """The format of integers that holds every weight of this one; None: there is none, or it is one."""
        return replace(self, bits=8, floats=False) if self.floats and self.bits == 4 else None

    def placed(self, *, integers: Sequence[int], floats: bool) -> "WeightFormat | None":
        """Return the format of a weight where programs read it, which multiply codes that are floats, or integers.

        ``integers``: the bits that these may have; codes of other bits get more. None: it becomes numbers of the
        model's dtype.
        """
        if self.floats and floats:
            return self
        form = self.as_integers if self.floats else self
        if form is None or not integers:
            return None
        bits: Any = min(bits for bits in integers if bits >= form.bits)
        return replace(form, bits=bits)

    @property
    def zero(self) -> int:
        """The code that means 0 where no zero points are stored."""
        return 1 << (self.bits - 1)

    @property
    def is_computed(self) -> bool:
        """Whether products are computed with weights in this format: the sizes of groups are limited."""
        if self.group is None:
            return not self.blocks
        whole = self.group % max(8, self.unit) == 0 and (not self.blocks or BLOCK % self.group == 0)
        return whole and (self.group <= _GROUPS or self.group % _GROUPS == 0)

    def num_groups(self, inputs: int) -> int:
        """Return the number of groups in an output of ``inputs`` inputs; a group shares a scale."""
        return 1 if self.group is None else -(-inputs // self.group)

    def num_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a weight [*stack, O, I] with its scales, zero points and order."""
        return sum(prod(size) * dtype.itemsize for size, dtype in self.arrays(shape).values())

    def arrays(self, shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]]:
        """Return shape and dtype of each array of a weight [*stack, O, I], by its name in GroupedWeight."""
        *outer, inputs = shape
        of_groups, of_blocks = (*outer, self.num_groups(inputs)), (*outer, -(-inputs // BLOCK))
        byte, scale = np.dtype(np.uint8), SCALE_DTYPES[self.scale_dtype]
        of_group = (of_groups, np.dtype(np.int8) if self.blocks else scale)
        result: dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]] = {
            "codes": ((*outer, inputs * self.bits // 8), byte),
            "scales": of_group,
        }
        if self.zeros:
            result["zeros"] = (of_groups, byte)
        if self.minimums:
            result["minimums"] = of_group
        if self.blocks:
            result["block_scales"] = (of_blocks, scale)
        if self.blocks and self.minimums:
            result["block_minimums"] = (of_blocks, scale)
        if self.ordered:
            result["order"] = ((*outer[:-1], inputs), np.dtype(np.int32))
        return result


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """A parameter in a WeightFormat, in host memory, before it is placed where programs read it.

    ``codes``: uint8 [*stack, O, I * bits / 8], as ``packed`` makes them. ``scales``: [*stack, O, G] in the format's
    dtype. ``zeros``: uint8 [*stack, O, G]. ``minimums``: as the scales. With blocks scales and minimums are int8, and
    ``block_scales`` and ``block_minimums`` [*stack, O, ceil(I / BLOCK)] in the format's dtype. ``order``: int32
    [*stack, I], the input of the product that each input of the codes is. The stack is of layers, or of layers and
    experts.
    """

    format: WeightFormat
    codes: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.generic]
    zeros: npt.NDArray[np.uint8] | None = None
    order: npt.NDArray[np.int32] | None = None
    minimums: npt.NDArray[np.generic] | None = None
    block_scales: npt.NDArray[np.generic] | None = None
    block_minimums: npt.NDArray[np.generic] | None = None

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
        for name in ARRAYS:
            if (part := getattr(self, name)) is not None:
                yield name, part

    def in_order(self) -> Self:
        """Return the same weight with an order that is stored, if it is none yet."""
        if self.order is not None:
            return self
        inputs = self.shape[-1]
        order = np.broadcast_to(np.arange(inputs, dtype=np.int32), (*self.shape[:-2], inputs))
        return replace(self, format=replace(self.format, ordered=True), order=order)

    def as_placed(self, form: WeightFormat) -> "GroupedWeight":
        """Return the same weight in the format that ``WeightFormat.placed`` has given."""
        if form == self.format:
            return self
        return self._as_integers() if self.format.floats else self._widened(form)

    def _widened(self, form: WeightFormat) -> "GroupedWeight":
        has_own_zero = self.zeros is not None or self.minimums is not None
        moved = np.uint8(0 if has_own_zero else form.zero - self.format.zero)
        empty = GroupedWeight.empty(form, self.shape)
        for index in np.ndindex(*self.shape[:-2]):  # a matrix at a time, so that what is between is small
            empty.codes[index] = packed(unpacked(self.codes[index], self.format) + moved, form)
        return replace(self, format=form, codes=empty.codes)

    def _as_integers(self) -> "GroupedWeight":
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

        def by_input(
            values: npt.NDArray[np.generic], of_blocks: npt.NDArray[np.generic] | None = None
        ) -> npt.NDArray[np.float32]:
            each = values[index].astype(np.float32)
            if of_blocks is not None:
                by_group = np.repeat(of_blocks[index].astype(np.float32), BLOCK // (form.group or BLOCK), axis=-1)
                each *= by_group[..., : each.shape[-1]]
            return each if form.group is None else np.repeat(each, form.group, axis=-1)[..., :inputs]

        numbers = numbers_of(unpacked(codes, form), form)
        if not (form.floats or form.minimums):
            numbers -= np.float32(form.zero) if self.zeros is None else by_input(self.zeros)
        numbers *= by_input(self.scales, self.block_scales)
        if self.minimums is not None:
            numbers += by_input(self.minimums, self.block_minimums)
        if self.order is None:
            return numbers
        places = np.argsort(self.order[index[: len(self.shape) - 2]], axis=-1)[..., None, :]
        return np.take_along_axis(numbers, places, axis=-1)


def packed(codes: npt.NDArray[np.uint8], form: WeightFormat) -> npt.NDArray[np.uint8]:
    """Return codes [..., I] as bytes of a GroupedWeight: those of each of PLANES after the other, neighbours together.

    Parts of 4 bits are two to a byte, of which input 2 i has the low half of byte i; narrower ones likewise.
    """
    if form.bits == 8:
        return codes
    planes, shift = [], 0
    for width in PLANES[form.bits]:
        part = codes >> np.uint8(shift) & np.uint8((1 << width) - 1)
        plane = part[..., :: 8 // width]
        for place in range(1, 8 // width):
            plane = plane | part[..., place :: 8 // width] << np.uint8(place * width)
        planes.append(plane)
        shift += width
    return np.concatenate(planes, axis=-1)


def unpacked(codes: npt.NDArray[np.uint8], form: WeightFormat) -> npt.NDArray[np.uint8]:
    """Return codes [..., I] of the bytes of a GroupedWeight."""
    if form.bits == 8:
        return codes
    inputs = codes.shape[-1] * 8 // form.bits
    result = np.zeros((*codes.shape[:-1], inputs), np.uint8)
    start = shift = 0
    for width in PLANES[form.bits]:
        plane = codes[..., start : start + inputs * width // 8]
        for place in range(8 // width):
            part = plane >> np.uint8(place * width) & np.uint8((1 << width) - 1)
            result[..., place :: 8 // width] |= part << np.uint8(shift)
        start, shift = start + inputs * width // 8, shift + width
    return result


def numbers_of(codes: npt.NDArray[np.uint8], form: WeightFormat) -> npt.NDArray[np.float32]:
    """Return codes [..., I] of a byte each as numbers, before zero points and scales."""
    if not form.floats:
        return codes.astype(np.float32)
    result: npt.NDArray[np.float32] = _table(form)[codes]
    return result


def _table(form: WeightFormat) -> npt.NDArray[np.float32]:
    """Return the number of each floating-point code."""
    return np.arange(1 << form.bits, dtype=np.uint8).view(FLOATS[form.bits]).astype(np.float32)
