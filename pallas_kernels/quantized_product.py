"""Products with weights of 2, 4, 5, 6 or 8 bits, in which neighbouring inputs of an output share a scale.

A weight is codes, scales and perhaps zero points by output and group of inputs: ``weight = (code - zero) * scale``. Or
it has minimums: ``weight = code * scale + minimum``. Packed, the PANEL outputs that are computed together lie next to
each other in words of 32 bits, as in ``packed_product``. A word has 4 inputs of 8 bits, or 8 of 4 bits. The first four
of these are the low halves of the bytes. Parts of 2 bits and 1 bit are packed alike. Codes of 5 and 6 bits are parts of
4 bits and of 1 or 2 (see PLANES). A unit is the fewest inputs whose parts fill words, first the words of the low parts.
GPUs have codes in another layout: see ``plain_codes``.

Inputs are rounded to 8 bits, by token and group, and multiplied in integers, whose sums are exact. llama.cpp does the
same with its Q8_0 blocks. With ``exact_inputs`` the weight is made of its codes instead, and the inputs stay.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Int8, Shaped, UInt8

from pallas_kernels.expert_product import TILE_ROWS, by_tiles
from pallas_kernels.packed_product import PANEL

INPUT_GROUP = 128
"""The most inputs that share a scale when they are rounded."""
BLOCK = 256
"""Inputs whose groups share a float, where scales are integers."""
PLANES: dict[int, tuple[int, ...]] = {2: (2,), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}
"""Widths of the parts of a code, its lowest bits first."""
_WORD_BYTES = 4
_LARGEST = float(np.finfo(np.float32).max)


class GroupedCodes(NamedTuple):
    """A weight, or a stack of them, in the layout of some product.

    ``scales``: floats by output and group. ``zeros``: zero points of 8 bits likewise. ``minimums``: as the scales, for
    ``code * scale + minimum``. With ``block_scales``, floats by output and BLOCK of inputs, scales are int8 that these
    multiply; minimums likewise are int8 times ``block_minimums``. None: there are none.
    """

    codes: Any
    scales: Any
    zeros: Any = None
    minimums: Any = None
    block_scales: Any = None
    block_minimums: Any = None

    def each(self, change: Callable[[Any], Any]) -> "GroupedCodes":
        """Return the arrays that there are, changed."""
        return GroupedCodes(*(None if part is None else change(part) for part in self))

    def only(self, index: Any) -> "GroupedCodes":
        """Return a part of the stack."""
        return self.each(lambda part: part[index])

    def factors(self, group: int, axis: int) -> tuple[Array, Array | None]:
        """Return scales and minimums of groups, multiplied in float32 by those of blocks, if there are any.

        ``axis``: that of the groups.
        """

        def whole(values: Any, of_blocks: Any) -> Any:
            if of_blocks is None:
                return values
            by_group = jnp.repeat(of_blocks.astype(jnp.float32), BLOCK // group, axis=axis)
            return values.astype(jnp.float32) * lax.slice_in_dim(by_group, 0, values.shape[axis], axis=axis)

        return whole(self.scales, self.block_scales), whole(self.minimums, self.block_minimums)


def default_zero(bits: int) -> int:
    """The code that means 0 where a weight has neither zero points nor minimums."""
    return 1 << (bits - 1)


def unit_inputs(bits: int) -> int:
    """The fewest inputs whose codes are whole words."""
    return 32 // min(PLANES[bits])


@partial(jax.jit, static_argnames="bits")
def pack_codes(codes: UInt8[Array, "*stack O I"], *, bits: int) -> UInt8[Array, "*stack P W N B"]:
    """Return the same codes, packed: P = ceil(O / N) panels of N = PANEL outputs, W words of B = 4 bytes of each
    output, whole units of them. Codes that fill up the last panel and unit are zeros."""
    *stack, O, I = codes.shape  # noqa: E741
    unit = unit_inputs(bits)
    P, U = -(-O // PANEL), -(-I // unit)
    padding = [(0, 0)] * len(stack) + [(0, P * PANEL - O), (0, U * unit - I)]
    units = jnp.pad(codes, padding).reshape(*stack, P, PANEL, U, unit)
    words, shift = [], 0
    for width in PLANES[bits]:
        quads = (units >> shift & (1 << width) - 1).reshape(*units.shape[:-1], -1, 8 // width, _WORD_BYTES)
        words.append(sum(quads[..., place, :] << place * width for place in range(8 // width)))
        shift += width
    return jnp.concatenate(words, axis=-2).reshape(*stack, P, PANEL, -1, _WORD_BYTES).swapaxes(-3, -2)


@jax.jit
def pack_groups(values: Shaped[Array, "*stack O G"]) -> Shaped[Array, "*stack P G N"]:
    """Scales or zero points of G groups, in the panels of the codes; the padding of the last panel is zeros."""
    *stack, O, G = values.shape  # noqa: E741
    P = -(-O // PANEL)
    padding = [(0, 0)] * len(stack) + [(0, P * PANEL - O), (0, 0)]
    return jnp.pad(values, padding).reshape(*stack, P, PANEL, G).swapaxes(-2, -1)


def unpack_codes(codes: UInt8[Array, "*stack P W N B"], *, bits: int) -> UInt8[Array, "*stack P N J"]:
    """The codes of each panel by output; J inputs: I, and the padding of the last unit."""
    words, unit = lax.bitcast_convert_type(codes.swapaxes(-3, -2), jnp.uint32), unit_inputs(bits)
    units = words.reshape(*words.shape[:-1], -1, unit * bits // 32)
    merged, start, shift = jnp.uint32(0), 0, 0
    for width in PLANES[bits]:
        part = units[..., start : start + unit * width // 32, None]
        places = jnp.arange(0, 8, width, dtype=jnp.uint32)
        quads = part >> places & jnp.uint32(((1 << width) - 1) * 0x01010101)
        merged |= quads.reshape(*units.shape[:-1], -1) << jnp.uint32(shift)
        start, shift = start + unit * width // 32, shift + width
    return lax.bitcast_convert_type(merged, jnp.uint8).reshape(*words.shape[:-1], -1)


def dequantized(weight: GroupedCodes, *, bits: int, group: int) -> Float[Array, "*stack O J"]:
    """The weight in float32, with the outputs that fill up the last panel and the inputs that fill up the last unit."""
    unpacked = lax.optimization_barrier(unpack_codes(weight.codes, bits=bits))  # else again for each number
    J = unpacked.shape[-1]

    def by_input(values: Array) -> Array:
        return jnp.repeat(values.swapaxes(-2, -1).astype(jnp.float32), group, axis=-1)[..., :J]

    scales, minimums = weight.factors(group, -2)
    numbers = unpacked.astype(jnp.float32)
    if minimums is None:
        numbers -= default_zero(bits) if weight.zeros is None else by_input(weight.zeros)
    result = numbers * by_input(scales)
    if minimums is not None:
        result += by_input(minimums)
    return result.reshape(*result.shape[:-3], -1, J)


def quantized_rows(weight: GroupedCodes, ids: Int[Array, "n"], *, bits: int, group: int) -> Float[Array, "n J"]:
    """Rows ``ids`` of the weight (of an embedding table) in float32, and zeros for the padding of the last unit."""
    at = ids // PANEL, slice(None), ids % PANEL
    gathered = lax.optimization_barrier(weight.each(lambda part: part[at][:, :, None]))  # as panels of one output
    return dequantized(gathered, bits=bits, group=group)


def input_group(group: int) -> int:
    """Return the number of inputs that share a scale when they are rounded, for a weight with groups of ``group``
    inputs."""
    return min(group, INPUT_GROUP)


def quantize_inputs_ref(x: Float[Array, "T J"], group: int) -> tuple[Int8[Array, "T A g"], Float[Array, "T A"]]:
    """x rounded to -127..127 times a float32 scale, by token and group of g inputs, the last of which may be zeros.

    The scale is the greatest absolute value / 127; NaN in a group that has a value which is not finite.
    """
    T, J = x.shape
    A = -(-J // group)
    grouped = jnp.pad(x.astype(jnp.float32), ((0, 0), (0, A * group - J))).reshape(T, A, group)
    largest = jnp.max(jnp.abs(grouped), axis=-1)
    finite = jnp.isfinite(grouped).all(axis=-1)
    inverse = jnp.minimum(127 / largest, _LARGEST)  # infinite where all are zeros
    rounded = jnp.clip(jnp.round(jnp.where(finite[..., None], grouped * inverse[..., None], 0)), -127, 127)
    return rounded.astype(jnp.int8), jnp.where(finite, largest / 127, jnp.nan)


def quantized_product_ref(
    x: Float[Array, "T I"],
    weight: GroupedCodes,
    layer: Int[Array, ""],
    num_tokens: Int[Array, ""],
    residual: Float[Array, "T O"] | None = None,
    *,
    bits: int,
    group: int,
    out_features: int,
    dtype: DTypeLike = jnp.float32,
    exact_inputs: bool = False,
) -> Float[Array, "T O"]:
    """Return x @ weight.T for the weight [out_features, I] that was packed as ``layer``.

    It is accumulated in float32 and rounded to ``dtype``. Then the ``residual`` of that dtype, if any, is added. Rows
    from ``num_tokens`` on are undefined.

    ``group``: inputs that share a scale: all, or a multiple of 8, which above INPUT_GROUP is a multiple of that.
    ``exact_inputs``: the inputs are not rounded to 8 bits, and the weight is rounded to the dtype of x.
    """
    del num_tokens  # XLA's program has one shape
    at = weight.only(layer)
    if exact_inputs:
        numbers = dequantized(at, bits=bits, group=group).astype(x.dtype)
        y = lax.dot_general(
            jnp.pad(x, ((0, 0), (0, numbers.shape[1] - x.shape[1]))),
            numbers,
            (((1,), (1,)), ((), ())),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
    else:
        y = _integer_product(x, at, bits=bits, group=group)
    y = y[:, :out_features].astype(dtype)
    return y if residual is None else residual + y


def quantized_expert_product_ref(
    x: Float[Array, "S I"],
    weight: GroupedCodes,
    layer: Int[Array, ""],
    starts: Int[Array, "E1"],
    *,
    bits: int,
    group: int,
    out_features: int,
    dtype: DTypeLike = jnp.float32,
    exact_inputs: bool = False,
) -> Float[Array, "S O"]:
    """Compute ``quantized_product_ref`` for each row of ``x`` and the weight of its expert.

    As in ``expert_product_ref``, expert e has the rows from ``starts[e]`` to ``starts[e + 1]``.
    """
    options: dict[str, Any] = {"bits": bits, "group": group, "out_features": out_features, "dtype": dtype}
    product = partial(quantized_product_ref, exact_inputs=exact_inputs, **options)
    return product_of_experts(product, x, weight, layer, starts, TILE_ROWS)


def product_of_experts(
    product: Callable[..., Array],
    x: Float[Array, "S I"],
    weight: GroupedCodes,
    layer: Int[Array, ""],
    starts: Int[Array, "E1"],
    tile_rows: int,
) -> Float[Array, "S O"]:
    """Return the products of rows with the weights of their experts, ``tile_rows`` rows of one expert at a time.

    ``product``: of rows, a weight [L * E, ...], the index of one, and the number of rows. ``weight``: [L, E, ...].
    Expert e has the rows from ``starts[e]`` to ``starts[e + 1]``.
    """
    E = len(starts) - 1
    stacked = weight.each(lambda part: part.reshape(-1, *part.shape[2:]))

    def multiply(rows: Float[Array, "M I"], expert: Int[Array, ""]) -> Float[Array, "M O"]:
        return product(rows, stacked, layer * E + expert, jnp.int32(len(rows)))

    return by_tiles(x, starts, multiply, tile_rows)


def _integer_product(
    x: Float[Array, "T I"],
    weight: GroupedCodes,
    *,
    bits: int,
    group: int,
) -> Float[Array, "T O"]:
    """The product with rounded inputs: exact in each group, and added in float32 in the order of the groups."""
    shared = input_group(group)
    rounded, input_scales = quantize_inputs_ref(x, shared)
    T, A, g = rounded.shape
    unpacked = unpack_codes(weight.codes, bits=bits).astype(jnp.int32)
    unpacked = jnp.pad(unpacked, ((0, 0), (0, 0), (0, max(0, A * g - unpacked.shape[-1]))))[..., : A * g]
    grouped = unpacked.reshape(-1, A, g)  # [O, A, g]
    sums = jnp.einsum("tag,oag->ato", rounded.astype(jnp.int32), grouped)
    totals = rounded.astype(jnp.int32).sum(axis=-1).T[..., None]  # [A, T, 1]
    of_group = jnp.arange(A) * shared // group

    def by_output(values: Array) -> Array:
        return values.swapaxes(0, 1).reshape(values.shape[1], -1)[of_group][:, None]  # [A, 1, O]

    scales, minimums = weight.factors(group, -2)
    lowest = jnp.zeros((A, 1, 1)) if minimums is None else by_output(minimums.astype(jnp.float32))
    zero: Any = default_zero(bits) if weight.zeros is None else by_output(weight.zeros.astype(jnp.int32))
    exact = (sums - (zero if minimums is None else 0) * totals).astype(jnp.float32)

    def add(y: Array, turn: tuple[Array, ...]) -> tuple[Array, None]:
        products, total, input_scale, scale, minimum = turn
        y += products * scale * input_scale[:, None]
        return y + total * input_scale[:, None] * minimum, None

    turns = (exact, totals.astype(jnp.float32), input_scales.T, by_output(scales.astype(jnp.float32)), lowest)
    return lax.scan(add, jnp.zeros((T, grouped.shape[0]), jnp.float32), turns)[0]
