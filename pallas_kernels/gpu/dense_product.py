"""Products with dense weights on Hopper: a persistent grid over tiles. Rows of padding have none.

A tile's shape follows the number of rows at run time, in one program. In every tile a result is the same sum: inputs in
steps of 64, from the first to the last, in one accumulator for each part of ``num_parts``.
"""

from functools import partial

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Shaped

from pallas_kernels.activations import GATED, check_activation
from pallas_kernels.gpu.dense_call import Call
from pallas_kernels.gpu.dense_support import COMPUTE, ROWS, Tile, num_parts, widest
from pallas_kernels.gpu.dense_walk import Walk, in_tier, load
from pallas_kernels.gpu.persistent import CTA, H200_MULTIPROCESSORS, REGISTERS, CtaItems, Interpret, Ref, put, repeat

_THREAD = "warpgroup"


def dense_product(
    x: Float[Array, "T I"],
    weight: Shaped[Array, "L O I"],
    layer: Int[Array, ""],
    num_tokens: Int[Array, ""],
    residual: Float[Array, "T O"] | None = None,
    *,
    out_features: int | None = None,
    dtype: DTypeLike = jnp.float32,
    scales: Float[Array, "L G O"] | None = None,
    group: int | None = None,
    num_ctas: int = H200_MULTIPROCESSORS,
    tiles: tuple[Tile, ...] | None = None,
    interpret: Interpret = None,
) -> Float[Array, "T O"]:
    """Return x @ weight[layer].T, rounded to ``dtype`` and then added to ``residual``; see dense_product_ref.

    x and weight are of one dtype of 16 bits. Or x is bfloat16 and the weight is codes, as ``plain_codes`` makes them,
    with ``scales``. Those of a ``group`` of inputs multiply the codes, rounded to bfloat16. Without groups those of
    whole outputs multiply the sums of each part. ``tiles``: the tiles to use; None: the choice of ``Tiles.of``. Raises
    NotImplementedError with the reason of ``dense_support.supports`` for sizes and dtypes that it does not take.

    Reads a weight once for each tile of rows, all but the first time mostly from the L2 cache. 2 * I * O FLOPs for each
    row of a tile. With two parts of the inputs, float32 sums of both are written and read once more.
    If the number of rows is not a multiple of 64, x, the residual and the result are copied once more.
    """
    del out_features  # the weight's shape says it
    given = None if residual is None else _padded(residual)
    _, outputs, inputs = weight.shape
    if num_parts(inputs, outputs) == 1:
        call = Call.of(x, weight, dtype, num_ctas, tiles, None, scales, group)
        return _run(call, x, weight, layer, num_tokens, scales, given, num_ctas, interpret)[0, : len(x)]
    call = Call.of(x, weight, jnp.float32, num_ctas, tiles, None, scales, group)
    parts = _run(call, x, weight, layer, num_tokens, scales, None, num_ctas, interpret)
    return _sum(parts, given, num_tokens, dtype, num_ctas, interpret)[: len(x)]


def product_parts(
    x: Float[Array, "T I"],
    weight: Shaped[Array, "L O I"],
    layer: Int[Array, ""],
    num_tokens: Int[Array, ""],
    *,
    scales: Float[Array, "L G O"] | None = None,
    group: int | None = None,
    num_ctas: int = H200_MULTIPROCESSORS,
    tiles: tuple[Tile, ...] | None = None,
    interpret: Interpret = None,
) -> Float[Array, "P T O"]:
    """Return the sums of x @ weight[layer].T by parts of the inputs; see product_parts_ref, and dense_product for the
    rest."""
    call = Call.of(x, weight, jnp.float32, num_ctas, tiles, None, scales, group)
    return _run(call, x, weight, layer, num_tokens, scales, None, num_ctas, interpret)[:, : len(x)]


def gated_product(
    x: Float[Array, "T I"],
    weight: Shaped[Array, "L FF I"],
    layer: Int[Array, ""],
    num_tokens: Int[Array, ""],
    *,
    activation: str,
    dtype: DTypeLike,
    scales: Float[Array, "L G FF"] | None = None,
    group: int | None = None,
    num_ctas: int = H200_MULTIPROCESSORS,
    tiles: tuple[Tile, ...] | None = None,
    interpret: Interpret = None,
) -> Float[Array, "T F"]:
    """Return the gated activation of x @ weight[layer].T; see gated_product_ref, and dense_product for the rest."""
    check_activation(activation, GATED)
    call = Call.of(x, weight, dtype, num_ctas, tiles, activation, scales, group)
    return _run(call, x, weight, layer, num_tokens, scales, None, num_ctas, interpret)[0, : len(x)]


def _padded(x: Float[Array, "T D"]) -> Float[Array, "R D"]:
    """Return x with whole tiles of ROWS rows."""
    return jnp.pad(x, ((0, -len(x) % ROWS), (0, 0))) if len(x) % ROWS else x


def _run(
    call: Call,
    x: Float[Array, "T I"],
    weight: Shaped[Array, "L O I"],
    layer: Int[Array, ""],
    num_tokens: Int[Array, ""],
    scales: Float[Array, "L G O"] | None,
    residual: Float[Array, "R O"] | None,
    num_ctas: int,
    interpret: Interpret,
) -> Float[Array, "P R F"]:
    """Return the result of each part of the inputs, with whole tiles of ROWS rows."""
    x = _padded(x)
    given = {name: one for name, one in (("scales", scales), ("residual", residual)) if one is not None}

    def body(
        x_ref: Ref, weight_ref: Ref, layer_ref: Ref, count_ref: Ref, *rest: Ref, full: list[Ref], **shared: Ref
    ) -> None:
        *given_refs, y_ref = rest
        refs = dict(zip(given, given_refs, strict=True))
        scales_ref = refs["scales"].at[layer_ref[0]] if "scales" in refs else None
        count, warpgroup = count_ref[0], lax.axis_index(_THREAD)
        checked = interpret is not None
        walks = [
            Walk(call, tile, count, num_ctas, full=filled, checked=checked, **shared)
            for tile, filled in zip(call.tiles.by_tier, full, strict=True)
        ]

        @pl.when(warpgroup == COMPUTE)
        def _() -> None:
            plgpu.set_max_registers(REGISTERS[0], action="decrease")
            weight_of_layer = weight_ref.at[layer_ref[0]]
            in_tier(count, [partial(walk.load_all, x_ref, weight_of_layer, scales_ref) for walk in walks])

        @pl.when(warpgroup < COMPUTE)
        def _() -> None:
            plgpu.set_max_registers(REGISTERS[1], action="increase")
            residual_ref = refs.get("residual")
            in_tier(count, [partial(walk.compute_all, warpgroup, y_ref, scales_ref, residual_ref) for walk in walks])

    result: Array = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((call.tiles.parts, len(x), call.results), call.dtype),
        scratch_types=call.scratch(),
        grid=(num_ctas,),
        grid_names=(CTA,),
        num_threads=COMPUTE + 1,
        thread_name=_THREAD,
        compiler_params=plgpu.CompilerParams(),
        interpret=interpret,
        kernel_name="dense_product" if call.activation is None else "gated_product",
    )(x, weight, layer.reshape(1), jnp.asarray(num_tokens, jnp.int32).reshape(1), *given.values())
    return result


def _sum(
    parts: Float[Array, "P R O"],
    residual: Float[Array, "R O"] | None,
    num_tokens: Int[Array, ""],
    dtype: DTypeLike,
    num_ctas: int,
    interpret: Interpret,
) -> Float[Array, "R O"]:
    """Return the sum of the parts, rounded to ``dtype`` and then added to ``residual``."""
    _, rows, outputs = parts.shape
    width, given = widest(outputs), () if residual is None else (residual,)

    def body(count_ref: Ref, parts_ref: Ref, *refs: Ref) -> None:
        *given_refs, y_ref = refs
        of_rows = jnp.int32(outputs // width)
        items = CtaItems(lax.div(count_ref[0] + ROWS - 1, jnp.int32(ROWS)) * of_rows, num_ctas)

        def add(i: Int[Array, ""]) -> None:
            row, column = lax.div(items[i], of_rows) * ROWS, lax.rem(items[i], of_rows) * width
            tile = pl.ds(pl.multiple_of(row, ROWS), ROWS), pl.ds(pl.multiple_of(column, 8), width)
            total = load(parts_ref.at[0, *tile])
            for part in range(1, len(parts)):
                total = total + load(parts_ref.at[part, *tile])
            y = total.astype(dtype)
            put(y_ref.at[tile], load(given_refs[0].at[tile]) + y if given_refs else y)

        repeat(0, items.mine, add)

    result: Array = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((rows, outputs), dtype),
        grid=(num_ctas,),
        grid_names=(CTA,),
        compiler_params=plgpu.CompilerParams(),
        interpret=interpret,
        kernel_name="sum_of_parts",
    )(jnp.asarray(num_tokens, jnp.int32).reshape(1), parts, *given)
    return result
