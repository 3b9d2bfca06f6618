"""Make weights in groups of what checkpoints store: codes, scales, zero points and orders. Host only, no jax."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from jaxgen.core.quantization import SCALE_DTYPES, Bits, GroupedWeight, ScaleDType, WeightFormat, packed, unpacked
from jaxgen.weights.families.config_fields import JsonFields
from jaxgen.weights.files.safetensors import Array

Bytes = npt.NDArray[np.uint8]
FLOATS = ("F16", "BF16", "F32")
WORD = 32
_READ: tuple[Bits, ...] = (4, 8)


def bits_of(words: int, values: int) -> Bits:
    """Return the bits of a value, given the 32-bit words and the values of a row. Raises ValueError."""
    for bits in _READ:
        if words == -(-values * bits // WORD):
            return bits
    raise ValueError(f"has {words} words of 32 bits for {values} values: supported are codes of 4 and 8 bits")


def read_group_size(fields: JsonFields) -> int | None:
    """Return the inputs of a group, or None where -1 or null says that an output is one group. Raises ConfigError."""
    return None if fields.get("group_size") in (-1, None) else fields.size("group_size")


def whole_words(outputs: int, bits: Bits) -> int:
    """Return the words that hold a value of each output. Raises ValueError if the last were not full."""
    if outputs * bits % WORD:
        raise ValueError(f"has {outputs} outputs; they must be a multiple of {WORD // bits}, the values of a word")
    return outputs * bits // WORD


def group_of(groups: int, inputs: int, size: int | None) -> int | None:
    """Return the number of inputs in a group, given the groups of an output. ``size``: that of the configuration.

    The size is returned if it fits. None: all inputs. Raises ValueError.
    """
    if groups == 1:
        return None
    if size is not None and groups == -(-inputs // size):
        return size
    if groups < 1 or inputs % groups:
        raise ValueError(f"has {groups} groups of scales, which must divide its {inputs} inputs")
    return inputs // groups


def scale_dtype(dtype: str) -> ScaleDType:
    """Return the dtype that holds scales of a file exactly. Raises ValueError."""
    if dtype not in FLOATS:
        raise ValueError(f"has scales of dtype {dtype}; they must be {', '.join(FLOATS)}")
    return "bfloat16" if dtype == "BF16" else "float32"


def code_bytes(words: npt.NDArray[np.generic]) -> Bytes:
    """Return the bytes of words [O, W] whose values are inputs, lowest bits first: those of a GroupedWeight."""
    result: Bytes = np.ascontiguousarray(words).view(np.uint8)
    return result


def unpack_words(words: npt.NDArray[np.generic], bits: Bits) -> Bytes:
    """Return the values [R, C] of words [R, W], lowest bits first."""
    return unpacked(code_bytes(words), WeightFormat(bits, None))


def grouped(
    codes: Bytes,
    scales: Array,
    zeros: Array | None,
    group_index: Array | None,
    form: WeightFormat,
) -> GroupedWeight:
    """Return a weight of its code bytes [O, *], scales and zeros [O, G], and the group of each input.

    Inputs are sorted by group, if they are not. Raises ValueError.
    """
    outputs, inputs = codes.shape[0], codes.shape[1] * 8 // form.bits
    order = None if group_index is None else input_order(group_index, form, inputs)
    if order is not None:
        codes = packed(unpacked(codes, form)[:, order], form)
    exact = np.broadcast_to(scales, (outputs, scales.shape[-1])).astype(SCALE_DTYPES[form.scale_dtype])
    if not np.isfinite(exact.astype(np.float32)).all():
        raise ValueError("has scales that are not finite")
    points = _zero_points(zeros, form)
    return GroupedWeight(replace(form, ordered=order is not None), codes, exact, points, order)


def _zero_points(stored: Array | None, form: WeightFormat) -> Bytes | None:
    """Return zero points to be stored, if the format has them. Raises ValueError for values outside a byte."""
    if stored is None:
        return None
    zeros = stored.astype(np.int32)
    if zeros.min() < 0 or zeros.max() > 255:
        raise ValueError(f"has zero points from {zeros.min()} to {zeros.max()}; they must be 0 to 255")
    if form.zeros:
        return zeros.astype(np.uint8)
    if (zeros != form.zero).any():
        raise ValueError(f"is symmetric by its configuration, but has zero points other than {form.zero}")
    return None


def input_order(group_index: Array, form: WeightFormat, inputs: int) -> npt.NDArray[np.int32] | None:
    """Return the inputs sorted by group; None: they are. Raises ValueError for groups that are not of equal size."""
    index = group_index.astype(np.int64)
    size = form.group or inputs
    in_turn = np.arange(inputs) // size
    if index.shape == in_turn.shape and (index == in_turn).all():
        return None
    order = np.argsort(index, kind="stable").astype(np.int32)
    if index.shape != in_turn.shape or (index[order] != in_turn).any():
        raise ValueError(f"has groups of inputs (g_idx) that are not {size} inputs each")
    return order
