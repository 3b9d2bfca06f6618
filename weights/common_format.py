"""Find a format that holds weights of two others exactly, and bring weights into it. Host only, no jax.

Files mix types within one parameter: queries of 4 bits beside values of 6, or some layers of 6 among those of 4.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from jaxgen.core.quantization import BLOCK, SCALE_DTYPES, GroupedWeight, WeightFormat, packed, unpacked


def common_format(one: WeightFormat, other: WeightFormat) -> WeightFormat | None:
    """Return the format of the fewest bits that holds all weights of both, or None.

    Where only one has integers for scales, both get their products in float32.
    """
    if one == other:
        return one
    if any(form.floats or form.zeros or form.ordered or form.group is None for form in (one, other)):
        return None
    fine, coarse = sorted((one.group or 0, other.group or 0))
    if coarse % fine or {one.scale_dtype, other.scale_dtype} - {"float16", "float32"}:
        return None
    blocks = one.blocks and other.blocks
    mixed = one.blocks != other.blocks
    wide = mixed or "float32" in (one.scale_dtype, other.scale_dtype)
    return WeightFormat(
        bits=max(one.bits, other.bits),
        group=fine,
        scale_dtype="float32" if wide and not blocks else "float16",
        minimums=one.minimums or other.minimums,
        blocks=blocks,
    )


def in_format(weight: GroupedWeight, form: WeightFormat) -> GroupedWeight:
    """Return the same numbers in a format that ``common_format`` has found for them and others.

    Without minimums in the format codes are moved to where its zero is; with them, what the zero was becomes one.
    """
    own = weight.format
    if own == form:
        return weight
    codes = unpacked(weight.codes, own)
    if not form.minimums:
        codes = codes + np.uint8(form.zero - own.zero)
    scales, of_blocks = _leveled(weight.scales, weight.block_scales, own, form)
    minimums, lowest = _leveled(weight.minimums, weight.block_minimums, own, form)
    if form.minimums and not own.minimums:
        minimums, lowest = (scales, _times(of_blocks, -own.zero)) if form.blocks else (_times(scales, -own.zero), None)
    return GroupedWeight(
        form, packed(codes, form), scales, minimums=minimums, block_scales=of_blocks, block_minimums=lowest
    )


def _times(values: Any, number: int) -> Any:
    """Return float16 or float32 times a power of two: exact."""
    return values * values.dtype.type(number)


def _leveled(
    values: npt.NDArray[np.generic] | None,
    of_blocks: npt.NDArray[np.generic] | None,
    own: WeightFormat,
    form: WeightFormat,
) -> tuple[Any, Any]:
    """Return what groups have, by the groups of the other format, and what blocks have, if it has blocks."""
    if values is None:
        return None, None
    each: Any = values
    if of_blocks is not None and not form.blocks:
        by_group = np.repeat(of_blocks.astype(np.float32), BLOCK // (own.group or BLOCK), axis=-1)
        each, of_blocks = each.astype(np.float32) * by_group[..., : each.shape[-1]], None
    if not form.blocks:
        each = each.astype(SCALE_DTYPES[form.scale_dtype])
    return np.repeat(each, (own.group or 1) // (form.group or 1), axis=-1), of_blocks
