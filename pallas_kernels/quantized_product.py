"""Products with weights of 4 or 8 bits, in which neighbouring inputs of an output share a scale.

A weight is codes, 0 to 15 or 0 to 255, scales and perhaps zero points by output and group of inputs:
``weight = (code - zero) * scale``. Packed, the PANEL outputs that are computed together lie next to each other in units
of 32 bits, as in ``packed_product``: a unit has 4 inputs of 8 bits, or 8 of 4 bits, of which the first four are the
low halves of the bytes. GPUs have them in another layout: see ``plain_codes``.

Inputs are rounded to 8 bits, by token and group, and multiplied in integers, whose sums are exact, as llama.cpp does
with its Q8_0 blocks. With ``exact_inputs`` the weight is made of its codes instead, and the inputs stay.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

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
_UNIT_BYTES = 4
_LARGEST = float(np.finfo(np.float32).max)


def default_zero(bits: int) -> int:
    """The code that means 0 where a weight has no zero points."""
    return 1 << (bits - 1)


@partial(jax.jit, static_argnames="bits")
def pack_codes(codes: UInt8[Array, "*stack O I"], *, bits: int) -> UInt8[Array, "*stack P U N B"]:
    """The same codes, packed: P = ceil(O / N) panels of N = PANEL outputs, U units of B = 4 bytes, which are 32 / bits
    inputs. Codes that fill up the last panel and unit are zeros."""
    *stack, O, I = codes.shape  # noqa: E741
    inputs = 8 * _UNIT_BYTES // bits
    P, U = -(-O // PANEL), -(-I // inputs)
    padding = [(0, 0)] * len(stack) + [(0, P * PANEL - O), (0, U * inputs - I)]
    units = jnp.pad(codes, padding).reshape(*stack, P, PANEL, U, inputs)
    if bits == 4:
        units = units[..., :_UNIT_BYTES] | units[..., _UNIT_BYTES:] << 4
    return units.swapaxes(-3, -2)


@jax.jit
def pack_groups(values: Shaped[Array, "*stack O G"]) -> Shaped[Array, "*stack P G N"]:
    """Scales or zero points of G groups, packed beside the codes; those that fill up the last panel are zeros."""
    *stack, O, G = values.shape  # noqa: E741
    P = -(-O // PANEL)
    padding = [(0, 0)] * len(stack) + [(0, P * PANEL - O), (0, 0)]
    return jnp.pad(values, padding).reshape(*stack, P, PANEL, G).swapaxes(-2, -1)


def unpack_codes(codes: UInt8[Array, "*stack P U N B"], *, bits: int) -> UInt8[Array, "*stack P N J"]:
    """The codes of each panel by output; J inputs: I, and the padding of the last unit."""
    units = codes.swapaxes(-3, -2)
    if bits == 4:
        units = jnp.concatenate([units & 15, units >> 4], axis=-1)
    return units.reshape(*units.shape[:-2], -1)


def dequantized(
    codes: UInt8[Array, "*stack P U N B"],
    scales: Float[Array, "*stack P G N"],
    zeros: UInt8[Array, "*stack P G N"] | None,
    *,
    bits: int,
    group: int,
) -> Float[Array, "*stack O J"]:
    """The weight in float32, with the outputs that fill up the last panel and the inputs that fill up the last unit."""
    unpacked = unpack_codes(codes, bits=bits)
    J = unpacked.shape[-1]

    def by_input(values: Array) -> Array:
        return jnp.repeat(values.swapaxes(-2, -1).astype(jnp.float32), group, axis=-1)[..., :J]

    numbers = unpacked.astype(jnp.float32) - (default_zero(bits) if zeros is None else by_input(zeros))
    weight = numbers * by_input(scales)
    return weight.reshape(*weight.shape[:-3], -1, J)


def quantized_rows(
    codes: UInt8[Array, "P U N B"],
    scales: Float[Array, "P G N"],
    zeros: UInt8[Array, "P G N"] | None,
    ids: Int[Array, "n"],
    *,
    bits: int,
    group: int,
) -> Float[Array, "n J"]:
    """Rows ``ids`` of the weight (of an embedding table) in float32, and zeros for the padding of the last unit."""
    at = ids // PANEL, slice(None), ids % PANEL

    def found(part: Array) -> Array:
        return part[at][:, :, None]  # as panels of one output

    zeros = None if zeros is None else found(zeros)
    return dequantized(found(codes), found(scales), zeros, bits=bits, group=group)


def input_group(group: int) -> int:
    """How many inputs share a scale when they are rounded, for a weight with groups of ``group`` inputs."""
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
    codes: UInt8[Array, "L P U N B"],
    scales: Float[Array, "L P G N"],
    zeros: UInt8[Array, "L P G N"] | None,
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
    """x @ weight.T for the weight [out_features, I] that was packed as ``layer``, accumulated in float32 and rounded to
    ``dtype``; then the ``residual`` of that dtype, if any, is added. Rows from ``num_tokens`` on hold nothing to
    read.

    ``group``: inputs that share a scale, a multiple of 8, and of INPUT_GROUP if it is more than that, or all of them.
    ``exact_inputs``: the inputs are not rounded to 8 bits, and the weight is rounded to the dtype of x.
    """
    del num_tokens  # XLA's program has one shape
    at = (codes[layer], scales[layer], None if zeros is None else zeros[layer])
    if exact_inputs:
        weight = dequantized(*at, bits=bits, group=group).astype(x.dtype)
        y = lax.dot_general(
            jnp.pad(x, ((0, 0), (0, weight.shape[1] - x.shape[1]))),
            weight,
            (((1,), (1,)), ((), ())),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
    else:
        y = _integer_product(x, *at, bits=bits, group=group)
    y = y[:, :out_features].astype(dtype)
    return y if residual is None else residual + y


def quantized_expert_product_ref(
    x: Float[Array, "S I"],
    codes: UInt8[Array, "L E P U N B"],
    scales: Float[Array, "L E P G N"],
    zeros: UInt8[Array, "L E P G N"] | None,
    layer: Int[Array, ""],
    starts: Int[Array, "E1"],
    *,
    bits: int,
    group: int,
    out_features: int,
    dtype: DTypeLike = jnp.float32,
    exact_inputs: bool = False,
) -> Float[Array, "S O"]:
    """As ``quantized_product_ref`` for each row of ``x`` and the weight of its expert, whose rows are those of
    ``expert_product_ref``: expert e has those from ``starts[e]`` to ``starts[e + 1]``."""
    about: dict[str, Any] = {"bits": bits, "group": group, "out_features": out_features, "dtype": dtype}
    product = partial(quantized_product_ref, exact_inputs=exact_inputs, **about)
    return product_of_experts(product, x, (codes, scales, zeros), layer, starts, TILE_ROWS)


def product_of_experts(
    product: Callable[..., Array],
    x: Float[Array, "S I"],
    parts: Sequence[Array | None],
    layer: Int[Array, ""],
    starts: Int[Array, "E1"],
    tile_rows: int,
) -> Float[Array, "S O"]:
    """Return the products of rows with the weights of their experts, ``tile_rows`` rows of one expert at a time.

    ``product``: of rows, ``parts`` [L * E, ...], the index of a weight, and the number of rows. ``parts`` [L, E, ...]:
    codes, scales and zero points (None: there are none). Expert e has the rows from ``starts[e]`` to ``starts[e + 1]``.
    """
    E = len(starts) - 1
    stacked = [None if part is None else part.reshape(-1, *part.shape[2:]) for part in parts]

    def multiply(rows: Float[Array, "M I"], expert: Int[Array, ""]) -> Float[Array, "M O"]:
        return product(rows, *stacked, layer * E + expert, jnp.int32(len(rows)))

    return by_tiles(x, starts, multiply, tile_rows)


def _integer_product(
    x: Float[Array, "T I"],
    codes: UInt8[Array, "P U N B"],
    scales: Float[Array, "P G N"],
    zeros: UInt8[Array, "P G N"] | None,
    *,
    bits: int,
    group: int,
) -> Float[Array, "T O"]:
    """The product with rounded inputs: exact in each group, and added in float32 in the order of the groups."""
    shared = input_group(group)
    rounded, input_scales = quantize_inputs_ref(x, shared)
    T, A, g = rounded.shape
    unpacked = unpack_codes(codes, bits=bits).astype(jnp.int32)
    unpacked = jnp.pad(unpacked, ((0, 0), (0, 0), (0, max(0, A * g - unpacked.shape[-1]))))[..., : A * g]
    grouped = unpacked.reshape(-1, A, g)  # [O, A, g]
    sums = jnp.einsum("tag,oag->ato", rounded.astype(jnp.int32), grouped)
    totals = rounded.astype(jnp.int32).sum(axis=-1).T[..., None]  # [A, T, 1]
    of_group = jnp.arange(A) * shared // group

    def by_output(values: Array) -> Array:
        return values.swapaxes(0, 1).reshape(values.shape[1], -1)[of_group][:, None]  # [A, 1, O]

    zero = default_zero(bits) if zeros is None else by_output(zeros.astype(jnp.int32))
    exact = (sums - zero * totals).astype(jnp.float32)

    def add(y: Array, turn: tuple[Array, Array, Array]) -> tuple[Array, None]:
        products, input_scale, scale = turn
        return y + products * scale * input_scale[:, None], None

    turns = (exact, input_scales.T, by_output(scales.astype(jnp.float32)))
    return lax.scan(add, jnp.zeros((T, grouped.shape[0]), jnp.float32), turns)[0]
