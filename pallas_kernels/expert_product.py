"""Products of rows with the weights of their experts, for a mixture of experts.

The rows are sorted by expert: expert e has those from ``starts[e]`` to ``starts[e + 1]``, any number of them. No row is
dropped, and an expert without rows is not read. A row's bits depend on that row and its expert's weight alone: the
native kernel has one order of sums, the twins have one shape of products.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from pallas_kernels.packed_product import packed_product_ref

TILE_ROWS = 8
"""Rows that the twins multiply at a time on a CPU: few, since a tile has rows of one expert only."""
GPU_TILE_ROWS = 64
"""The same on a GPU, where the host waits for each turn of the loop over the tiles."""

Multiply = Callable[[Float[Array, "M I"], Int[Array, ""]], Float[Array, "M O"]]
"""(rows, expert) -> the product of the rows with the expert's weight."""


def expert_product_ref(
    x: Float[Array, "S I"],
    weights: Float[Array, "L E O I"],
    layer: Int[Array, ""],
    starts: Int[Array, "E1"],
    *,
    dtype: DTypeLike = jnp.float32,
    tile_rows: int = TILE_ROWS,
) -> Float[Array, "S O"]:
    """x @ weight.T for each row of ``x`` and the weight of its expert in ``layer``, accumulated in float32 and rounded
    to ``dtype``.

    Rows from ``starts[-1]`` on hold nothing to read. float32 operands are not rounded to fewer bits. The whole stack is
    passed because a slice of it would be a copy. E1 = E + 1; starts[0] = 0.

    Work: 2 * I * O FLOPs for each row of the used tiles of ``tile_rows`` rows, which read the weight once each.
    """
    _, E, O, I = weights.shape  # noqa: E741
    stack = weights.reshape(-1, O, I)

    def multiply(rows: Float[Array, "M I"], expert: Int[Array, ""]) -> Float[Array, "M O"]:
        return lax.dot_general(
            rows,
            lax.dynamic_index_in_dim(stack, layer * E + expert, keepdims=False),
            (((1,), (1,)), ((), ())),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        ).astype(dtype)

    return by_tiles(x, starts, multiply, tile_rows)


def packed_expert_product_ref(
    x: Float[Array, "S I"],
    packed: Float[Array, "L E P U N J"],
    layer: Int[Array, ""],
    starts: Int[Array, "E1"],
    *,
    out_features: int,
    dtype: DTypeLike = jnp.float32,
) -> Float[Array, "S O"]:
    """Compute ``expert_product_ref`` for weights [out_features, I] that ``packed_product.pack`` has packed."""
    E = packed.shape[1]
    stack = packed.reshape(-1, *packed.shape[2:])

    def multiply(rows: Float[Array, "M I"], expert: Int[Array, ""]) -> Float[Array, "M O"]:
        number = jnp.int32(len(rows))
        return packed_product_ref(rows, stack, layer * E + expert, number, out_features=out_features, dtype=dtype)

    return by_tiles(x, starts, multiply, TILE_ROWS)


def by_tiles(
    x: Float[Array, "S I"], starts: Int[Array, "E1"], multiply: Multiply, tile_rows: int
) -> Float[Array, "S O"]:
    """The products, tile after tile of one expert's rows, in the order of the experts.

    An expert's last tile reaches into rows of the next one, whose own tiles come later and write them again.
    """
    S, past = len(x), tile_rows - 1
    tiles = (starts[1:] - starts[:-1] + past) // tile_rows
    ends = jnp.cumsum(tiles)
    rows = jnp.pad(x, ((0, past), (0, 0)))

    def turn(i: Int[Array, ""], y: Float[Array, "R O"]) -> Float[Array, "R O"]:
        expert = jnp.searchsorted(ends, i, side="right", method="compare_all")
        first = starts[expert] + (i - (ends - tiles)[expert]) * tile_rows
        product = multiply(lax.dynamic_slice_in_dim(rows, first, tile_rows), expert)
        return lax.dynamic_update_slice_in_dim(y, product, first, axis=0)

    tile = jax.eval_shape(multiply, rows[:tile_rows], starts[0])
    y = lax.fori_loop(0, ends[-1], turn, jnp.zeros((S + past, tile.shape[1]), tile.dtype))
    return y[:S]
