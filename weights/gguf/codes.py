"""Read quantised tensors of GGUF files as codes, scales and minimums: no number is rounded again. Host only, no jax.

The blocks are those of llama.cpp's ``ggml-common.h``. The types whose inputs share two levels of scales (K) keep both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxgen.core.quantization import BLOCK, GroupedWeight, WeightFormat, packed
from jaxgen.weights.encodings import mxfp4
from jaxgen.weights.gguf.file import StoredTensor

Bytes = npt.NDArray[np.uint8]
_AT_ONCE = 2**22
"""Numbers whose codes are taken out of their blocks at a time, a byte for each."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a ``Layout`` splits n blocks into.

    There are codes [n, inputs], and by the names of GroupedWeight their scales and minimums [n, groups].
    """

    codes: Bytes
    factors: dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class Layout:
    """``form``: what blocks become. ``split``: takes blocks [n, bytes] apart."""

    form: WeightFormat
    split: Callable[[Bytes], Parts]


def stored_form(stored: StoredTensor) -> WeightFormat | None:
    """Return the format of a tensor's codes; None: it has none that is kept, and is dequantised."""
    layout = LAYOUTS.get(stored.kind.name)
    return None if layout is None else layout.form


def kept_form(tensors: Sequence[StoredTensor]) -> WeightFormat | None:
    """Return the format of all of these tensors, if they have one that is computed."""
    form, *others = {stored_form(tensor) for tensor in tensors}
    return form if form is not None and form.is_computed and not others else None


def codes_of(tensors: Sequence[StoredTensor], form: WeightFormat) -> GroupedWeight | None:
    """Return the weight whose rows are those of the tensors; None: they are not stored in this format.

    Raises ValueError for scales that are not finite.
    """
    if kept_form(tensors) != form:
        return None
    *stack, _, inputs = tensors[0].shape
    outputs = [tensor.shape[-2] for tensor in tensors]
    whole = GroupedWeight.empty(form, (*stack, sum(outputs), inputs))
    start = 0
    for tensor, rows in zip(tensors, outputs, strict=True):
        for index in np.ndindex(*stack):
            _read(tensor.data[index], LAYOUTS[tensor.kind.name], whole, (*index, slice(start, start + rows)))
        start += rows
    return whole


def _read(rows: Any, layout: Layout, into: GroupedWeight, place: tuple[Any, ...]) -> None:
    """Read the blocks of a matrix [outputs, bytes], some rows at a time, into rows of a weight."""
    *index, of_matrix = place
    inputs = into.shape[-1]
    step = max(1, _AT_ONCE // inputs)
    for first in range(0, len(rows), step):
        batch = rows[first : first + step]
        begin = of_matrix.start + first
        into[*index, slice(begin, begin + len(batch))] = _weight(batch, layout, inputs)


def _weight(rows: Any, layout: Layout, inputs: int) -> GroupedWeight:
    outputs, of_block = len(rows), BLOCK if layout.form.blocks else layout.form.group or inputs
    parts = layout.split(np.ascontiguousarray(rows).reshape(outputs * inputs // of_block, -1))
    factors: dict[str, Any] = {name: values.reshape(outputs, -1) for name, values in parts.factors.items()}
    for name, values in factors.items():
        if values.dtype != np.int8 and not np.isfinite(values).all():
            raise ValueError(f"has {name.replace('_', ' ')} that are not finite")
    return GroupedWeight(layout.form, packed(parts.codes.reshape(outputs, inputs), layout.form), **factors)


def _cut(blocks: Bytes, *sizes: int) -> list[Bytes]:
    """Return fields of the given sizes in bytes, one after the other; the last field has the rest."""
    return np.split(blocks, np.cumsum(sizes), axis=1)


def _spread(field: Bytes, width: int, run: int) -> Bytes:
    """Return parts of ``width`` bits: of each ``run`` bytes first all lowest parts, then all next ones."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    parts = field.reshape(len(field), -1, 1, run) >> shifts & np.uint8((1 << width) - 1)
    return parts.reshape(len(field), -1)


def _float(field: Bytes) -> npt.NDArray[np.float16]:
    return np.ascontiguousarray(field).view(np.float16)


def _q8_0(blocks: Bytes) -> Parts:
    scale, codes = _cut(blocks, 2)
    return Parts(codes ^ np.uint8(128), {"scales": _float(scale)})  # -128 to 127 as 0 to 255


def _q4_0(blocks: Bytes) -> Parts:
    scale, codes = _cut(blocks, 2)
    return Parts(_spread(codes, 4, 16), {"scales": _float(scale)})


def _q4_1(blocks: Bytes) -> Parts:
    scale, minimum, codes = _cut(blocks, 2, 2)
    return Parts(_spread(codes, 4, 16), {"scales": _float(scale), "minimums": _float(minimum)})


def _q5_0(blocks: Bytes) -> Parts:
    scale, high, low = _cut(blocks, 2, 4)
    return Parts(_fifth(low, high), {"scales": _float(scale)})


def _q5_1(blocks: Bytes) -> Parts:
    scale, minimum, high, low = _cut(blocks, 2, 2, 4)
    return Parts(_fifth(low, high), {"scales": _float(scale), "minimums": _float(minimum)})


def _mxfp4(blocks: Bytes) -> Parts:
    exponent, codes = _cut(blocks, 1)
    return Parts(_spread(codes, 4, 16), {"scales": mxfp4.powers_of_two(exponent)})


def _fifth(low: Bytes, high: Bytes) -> Bytes:
    """Return codes whose fifth bits are those of four bytes in turn."""
    return _spread(low, 4, 16) | np.unpackbits(high, axis=1, bitorder="little") << np.uint8(4)


def _q2_k(blocks: Bytes) -> Parts:
    both, codes, scale, minimum = _cut(blocks, 16, 64, 2)
    return Parts(_spread(codes, 2, 32), _two_levels(both & 15, scale, both >> 4, minimum))


def _q3_k(blocks: Bytes) -> Parts:
    high, low, packed_scales, scale = _cut(blocks, 32, 64, 12)
    fields = _cut(packed_scales, 8)
    scales = _spread(fields[0], 4, 8) | _spread(fields[1], 2, 4) << np.uint8(4)
    codes = _spread(low, 2, 32) | _spread(high, 1, 32) << np.uint8(2)
    return Parts(codes + np.uint8(4), _two_levels(scales.astype(np.int8) - np.int8(32), scale))


def _q4_k(blocks: Bytes) -> Parts:
    scale, minimum, both, codes = _cut(blocks, 2, 2, 12)
    return Parts(_spread(codes, 4, 32), _two_levels(*_sixes(both, scale, minimum)))


def _q5_k(blocks: Bytes) -> Parts:
    scale, minimum, both, high, low = _cut(blocks, 2, 2, 12, 32)
    codes = _spread(low, 4, 32) | _spread(high, 1, 32) << np.uint8(4)
    return Parts(codes, _two_levels(*_sixes(both, scale, minimum)))


def _q6_k(blocks: Bytes) -> Parts:
    low, high, scales, scale = _cut(blocks, 128, 64, 16)
    codes = _spread(low, 4, 64) | _spread(high, 2, 32) << np.uint8(4)
    return Parts(codes, _two_levels(scales, scale))


def _sixes(both: Bytes, scale: Bytes, minimum: Bytes) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Return scales of 6 bits and their float, minimums likewise."""
    from gguf.quants import Q4_K

    scales, minimums = Q4_K.get_scale_min(np.ascontiguousarray(both))
    return scales, scale, np.asarray(minimums, np.uint8), minimum


def _two_levels(
    scales: npt.NDArray[Any], of_block: Bytes, minimums: npt.NDArray[Any] | None = None, minimum: Bytes | None = None
) -> dict[str, npt.NDArray[np.generic]]:
    result: dict[str, npt.NDArray[np.generic]] = {"scales": scales.view(np.int8), "block_scales": _float(of_block)}
    if minimums is None or minimum is None:
        return result
    return result | {"minimums": minimums.view(np.int8), "block_minimums": -_float(minimum)}  # they are subtracted


def _levels(bits: Any, group: int, *, minimums: bool = False) -> WeightFormat:
    return WeightFormat(bits, group, "float16", minimums=minimums, blocks=True)


LAYOUTS = {
    "Q8_0": Layout(WeightFormat(8, 32, "float16"), _q8_0),
    "Q4_0": Layout(WeightFormat(4, 32, "float16"), _q4_0),
    "Q4_1": Layout(WeightFormat(4, 32, "float16", minimums=True), _q4_1),
    "Q5_0": Layout(WeightFormat(5, 32, "float16"), _q5_0),
    "Q5_1": Layout(WeightFormat(5, 32, "float16", minimums=True), _q5_1),
    "MXFP4": Layout(mxfp4.FORMAT, _mxfp4),
    "Q2_K": Layout(_levels(2, 16, minimums=True), _q2_k),
    "Q3_K": Layout(_levels(4, 16), _q3_k),
    "Q4_K": Layout(_levels(4, 32, minimums=True), _q4_k),
    "Q5_K": Layout(_levels(5, 32, minimums=True), _q5_k),
    "Q6_K": Layout(_levels(6, 16), _q6_k),
}
"""By the gguf package's name of a type."""
