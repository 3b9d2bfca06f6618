"""Quantize weights, and dequantize them. Host only, no jax.

Each number is rounded to the nearest of its group's ``(code - zero) * scale``, or ``number * scale``, with the scale as
it is stored. Each group is rounded by itself. So the result depends neither on the machine nor on how a weight is split
into tensors. Weights are rounded a block of outputs at a time, which takes little extra memory.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from jaxgen.core.errors import ConfigError
from jaxgen.core.quantization import FLOATS, SCALE_DTYPES, GroupedWeight, WeightFormat, packed
from jaxgen.hardware.container import num_cores

_BLOCK = 1 << 18
"""Numbers that are rounded at a time: what is computed between stays in a core's cache."""
_MOST_THREADS = 8
Floats = npt.NDArray[np.float32]


def quantized(weight: npt.NDArray[np.generic], form: WeightFormat, name: str) -> GroupedWeight:
    """Return a weight [*stack, O, I] of floating-point numbers in a format, rounded to nearest.

    Raises ConfigError, with the weight's name, for numbers that are not finite, and an odd I with 4 bits.
    """
    *outer, inputs = weight.shape
    if form.bits == 4 and inputs % 2:
        raise ConfigError(f"{name} has {inputs} inputs, an odd number, which 4 bits cannot hold: use int8")
    result = GroupedWeight.empty(form, weight.shape)
    flat = weight.reshape(prod(outer), inputs)
    codes, scales = (part.reshape(len(flat), -1) for part in (result.codes, result.scales))
    zeros = None if result.zeros is None else result.zeros.reshape(len(flat), -1)
    if result.order is not None:
        result.order[...] = np.arange(inputs, dtype=np.int32)

    def round_block(rows: slice) -> None:
        grouped = _grouped(flat[rows].astype(np.float32), form)
        with np.errstate(invalid="ignore", over="ignore"):
            scales[rows], zero = _scales(grouped, form)
        if not np.isfinite(scales[rows].astype(np.float32)).all():
            raise ConfigError(f"{name} has numbers that are not finite")
        if zeros is not None and zero is not None:
            zeros[rows] = zero
        codes[rows] = packed(_rounded(grouped, scales[rows], zero, form)[:, :inputs], form)

    _by_blocks(round_block, len(flat), inputs)
    return result


def dequantized(weight: GroupedWeight, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    """Return the numbers of a weight, [*stack, O, I], for products that know no codes."""
    numbers = np.empty(weight.shape, dtype)
    for index in np.ndindex(*weight.shape[:-2]):

        def make_block(rows: slice, index: Any = index) -> None:
            with np.errstate(over="ignore"):
                numbers[*index, rows] = weight.dequantized((*index, rows))

        _by_blocks(make_block, *weight.shape[-2:])
    return numbers


def _by_blocks(work: Callable[[slice], None], rows: int, inputs: int) -> None:
    """Do some work on all rows, in blocks and threads: numpy releases the interpreter lock meanwhile."""
    step = max(1, _BLOCK // inputs)
    blocks = [slice(start, start + step) for start in range(0, rows, step)]
    if len(blocks) < 2:
        for block in blocks:
            work(block)
        return
    with ThreadPoolExecutor(min(_MOST_THREADS, num_cores(), len(blocks))) as pool:
        list(pool.map(work, blocks))


def _grouped(rows: Floats, form: WeightFormat) -> Floats:
    """Return rows [R, I] as [R, G, g]; a last group that is shorter is filled up with zeros."""
    R, I = rows.shape  # noqa: E741
    group = form.group or I
    if short := -I % group:
        rows = np.pad(rows, ((0, 0), (0, short)))
    return rows.reshape(R, -1, group)


def _scales(grouped: Floats, form: WeightFormat) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.uint8] | None]:
    """Return scale and zero point of each group: with zero points all codes span its range, widened to hold 0.

    Without zero points, the number farthest from 0 has the lowest code. The scale's sign gives it either sign. The low
    side has one code more than the high side. With floating-point codes that number has the greatest code.
    """
    highest, lowest = _reduced(np.maximum, grouped), _reduced(np.minimum, grouped)
    dtype = SCALE_DTYPES[form.scale_dtype]
    if form.floats:
        return (np.maximum(highest, -lowest) / _greatest(form)).astype(dtype), None
    if not form.zeros:
        farthest = np.where(highest > -lowest, highest, lowest)
        return (farthest / np.float32(-form.zero)).astype(dtype), None
    highest, lowest = np.maximum(highest, 0), np.minimum(lowest, 0)
    last = np.float32(2 * form.zero - 1)
    scales = ((highest - lowest) / last).astype(dtype)
    return scales, np.clip(np.rint(-lowest / _divisor(scales)), 0, last).astype(np.uint8)


def _reduced(operation: np.ufunc, grouped: Floats) -> Floats:
    """Return the extreme of each group, by halves: numpy is slow along short axes."""
    while grouped.shape[-1] % 2 == 0:
        half = grouped.shape[-1] // 2
        grouped = operation(grouped[..., :half], grouped[..., half:])
    result: Floats = operation.reduce(grouped, axis=-1)
    return result


def _rounded(
    grouped: Floats, scales: npt.NDArray[np.generic], zeros: npt.NDArray[np.uint8] | None, form: WeightFormat
) -> npt.NDArray[np.uint8]:
    """Return the codes [R, G * g] of groups, whose array is used up."""
    grouped /= _divisor(scales)[..., None]
    if form.floats:
        greatest = _greatest(form)
        np.clip(grouped, -greatest, greatest, out=grouped)  # a scale may have been rounded to a smaller number
        return grouped.astype(FLOATS[form.bits]).view(np.uint8).reshape(len(grouped), -1)
    np.rint(grouped, out=grouped)
    grouped += np.float32(form.zero) if zeros is None else zeros[..., None]
    np.clip(grouped, 0, 2 * form.zero - 1, out=grouped)
    return grouped.astype(np.uint8).reshape(len(grouped), -1)


def _greatest(form: WeightFormat) -> np.float32:
    """Return the greatest number that a floating-point code is."""
    return np.float32(ml_dtypes.finfo(FLOATS[form.bits]).max)  # type: ignore[no-untyped-call]


def _divisor(scales: npt.NDArray[np.generic]) -> Floats:
    """Return scales in float32, and 1 in place of 0, where all numbers are 0 or nearly so."""
    exact = scales.astype(np.float32)
    return np.where(exact == 0, np.float32(1), exact)
