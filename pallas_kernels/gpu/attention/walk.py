"""Walk over contexts on Hopper.

A persistent grid takes items one after another. A CTA's last warpgroup fetches queries, keys and values by bulk copies
(TMA). The other warpgroups compute on the same keys and values, each for 64 packed queries. If heads are large, each
computes a slice of 64 queries' values.

One body has two configurations. In pieces: an item is one piece of a decode's context, and its maximum, sum and output
are stored as they are. Whole: an item walks all of its context and merges the pieces in registers. Order and arithmetic
are the same as in the kernel that combines stored pieces.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int, Num

from pallas_kernels.gpu.attention import mma
from pallas_kernels.gpu.attention.codes import convert
from pallas_kernels.gpu.attention.combine import stored_heads
from pallas_kernels.gpu.attention.config import Scalar, Walk, WorkItem, for_each_item, scratch
from pallas_kernels.gpu.attention.fetch import fetch
from pallas_kernels.gpu.attention.items import GRANULE, KV_TILE, MOST_VALUES, WARPGROUP_ROWS, WorkItems
from pallas_kernels.gpu.attention.online_softmax import Part, normalized
from pallas_kernels.gpu.attention.tile import ends_within, hide_rest, walk_item, weigh
from pallas_kernels.gpu.persistent import CTA, Ref, put, repeat
from pallas_kernels.kv_codes import code_rows, scale_rows


def walk_contexts(
    walk: Walk,
    q: Float[Array, "K P D"],
    cache: Num[Array, "N L 2 K B W"],
    layer: Int[Array, ""],
    tables: Int[Array, "R M"],
    context_lens: Int[Array, "R"],
    items: WorkItems,
    sinks: Float[Array, "K P"] | None,
    tokens: int,
) -> Any:
    """Return outputs of packed queries in the queries' dtype or, in pieces, a Part of n pieces in float32.

    Outputs are [K, P, D] or, if the walk stores rows, [``tokens``, K, heads, D] with ``stored_heads``. A Part has
    maxima and sums [n, K, rows], and outputs [n, K, rows, D]. Values outside all items are undefined, and may be NaN.
    ``sinks`` are in the exponents' unit.
    """
    K, P, D = q.shape
    n, rows = len(items.row), walk.piece_granules * GRANULE
    operands = {"q": q, "cache": cache, "layer": layer[None], "tables": tables, "context_lens": context_lens}
    operands |= items._asdict()
    if walk.codes is not None:
        operands |= {"cache": code_rows(cache), "scales": scale_rows(cache)}
    if sinks is not None:
        operands["sinks"] = sinks
    if walk.in_pieces:
        each = rows if walk.wgmma else WARPGROUP_ROWS
        shapes = {"maximum": (n, K, each), "total": (n, K, each), "output": (n, K, rows, D)}
        results = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    else:
        shape = (tokens, K, stored_heads(walk), D) if walk.stores_rows else (K, P // GRANULE, GRANULE, D)
        results = {"output": jax.ShapeDtypeStruct(shape, q.dtype)}
    names = (*operands, *(f"result_{name}" for name in results))

    run, memory = (_run, scratch(walk)) if walk.wgmma else (mma.run, mma.scratch(walk))

    def body(*refs: Ref, **shared: Ref) -> None:
        run(walk, dict(zip(names, refs, strict=True)), shared)

    out = plgpu.kernel(
        body,
        out_type=tuple(results.values()),
        scratch_types=memory,
        grid=(walk.num_ctas,),
        grid_names=(CTA,),
        num_threads=walk.warpgroups,
        thread_name="warpgroup",
        # A row is reduced within a warp, which takes no shared memory.
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=0),
        interpret=walk.interpret,
        kernel_name=walk.name,
    )(*operands.values())
    if walk.in_pieces:
        return Part(*out)
    return out[0] if walk.stores_rows else out[0].reshape(K, P, D)


def _run(walk: Walk, refs: dict[str, Ref], shared: dict[str, Ref]) -> None:
    few, many = walk.registers[0], walk.registers[-1]
    group = lax.axis_index("warpgroup")

    @pl.when(group == walk.compute_groups)
    def _() -> None:
        plgpu.set_max_registers(few, action="decrease")
        fetch(walk, refs, shared)

    if walk.codes is not None:
        pl.when(group > walk.compute_groups)(partial(_convert, walk, refs, shared))

    @pl.when(group < walk.compute_groups)
    def _() -> None:
        plgpu.set_max_registers(many, action="increase")
        for_each_item(walk, refs, partial(_attend, walk, refs, shared, group))
        plgpu.wait_smem_to_gmem(0)


def _convert(walk: Walk, refs: dict[str, Ref], shared: dict[str, Ref]) -> None:
    plgpu.set_max_registers(walk.registers[1], action="decrease")
    convert(walk, refs, shared)


def _attend(
    walk: Walk, refs: dict[str, Ref], shared: dict[str, Ref], group: Scalar, n: Scalar, item: WorkItem, walked: Scalar
) -> Scalar:
    """Compute one warpgroup's share of an item."""
    slot, rows = lax.rem(n, walk.query_slots), lax.div(group, walk.slices)
    q = shared["q"].at[slot, rows]
    fold = partial(_fold, walk, shared, group, q, item)
    plgpu.barrier_wait(shared["q_full"].at[slot])

    part, walked = walk_item(walk, refs, item, rows, fold, walked)
    _show(walk, q)
    plgpu.barrier_arrive(shared["q_consumed"].at[slot])
    plgpu.wait_smem_to_gmem(0)
    (_store_piece if walk.in_pieces else _store_rows)(walk, refs, shared, group, item, part)
    return walked


def _fold(
    walk: Walk,
    shared: dict[str, Ref],
    group: Scalar,
    q: Ref,
    item: WorkItem,
    tile: Scalar,
    carry: tuple[Part, Scalar],
) -> tuple[Part, Scalar]:
    """Fold one more KV tile into the result."""
    part, walked = carry
    stage = lax.rem(walked, walk.stages)
    k, v = shared["k"].at[stage], shared["v"].at[stage, lax.rem(group, walk.slices)]
    origin = item.origin + lax.div(group, walk.slices) * WARPGROUP_ROWS
    v_full, is_last = shared["v_full"].at[stage], ends_within(item, tile)

    @pl.when(is_last)
    def _() -> None:  # before the products, which leave no registers for it
        await_tile(v_full)
        _hide_rest(walk, shared, group, item, tile, stage, v)

    await_tile(shared["k_full"].at[stage])
    part, weights = weigh(walk, origin, tile, _products(walk, q, k), part)
    pl.when(jnp.logical_not(is_last))(lambda: await_tile(v_full))
    output = _add_weighted(walk, shared, group, part.output, weights, v)
    _show(walk, k, v)
    plgpu.barrier_arrive(shared["consumed"].at[stage])
    return part._replace(output=output), walked + 1


def await_tile(full: Ref) -> None:
    """Until keys or values have arrived."""
    plgpu.barrier_wait(full)


def _hide_rest(
    walk: Walk, shared: dict[str, Ref], group: Scalar, item: WorkItem, tile: Scalar, stage: Scalar, v: Ref
) -> None:
    """Zero the values past the context: once, by the first of the warpgroups that share them."""

    def hide() -> None:
        hide_rest(walk, item, tile, v)
        plgpu.commit_smem()

    if walk.tile_groups == 1:
        hide()
        return
    hidden, is_first = shared["v_hidden"].at[stage], group < walk.slices

    @pl.when(is_first)
    def _() -> None:
        hide()
        plgpu.barrier_arrive(hidden)

    pl.when(jnp.logical_not(is_first))(lambda: plgpu.barrier_wait(hidden))


def _products(walk: Walk, q: Ref, k: Ref) -> Any:
    """Return the products of a warpgroup's queries and a tile of keys."""
    _show(walk, q, k)

    def product(accumulator: Ref) -> Any:
        # In steps where heads are large: a compiler keeps all addresses of a step in registers.
        step = min(walk.head_dim, MOST_VALUES // walk.slices)
        for first in range(0, walk.head_dim, step):
            depth = pl.ds(first, step)
            plgpu.wgmma(accumulator, q.at[:, depth], k.at[:, depth].transpose((1, 0)))
        return accumulator[...]

    return pl.run_scoped(product, plgpu.WGMMAAccumulatorRef((WARPGROUP_ROWS, KV_TILE), jnp.float32))


def _add_weighted(walk: Walk, shared: dict[str, Ref], group: Scalar, output: Any, weights: Any, v: Ref) -> Any:
    """output + weights x values."""
    if not walk.interpret:
        return pl.run_state(lambda accumulator: plgpu.wgmma(accumulator, weights, v))(
            plgpu.WGMMAAccumulatorRef.init(output)
        )
    staging = shared["weights"].at[group]
    staging[...] = weights
    plgpu.commit_smem()
    _show(walk, v)

    def product(accumulator: Ref) -> Any:
        plgpu.wgmma(accumulator, staging, v)
        return accumulator[...]

    return output + pl.run_scoped(product, plgpu.WGMMAAccumulatorRef(output.shape, jnp.float32))


def _show(walk: Walk, *operands: Ref) -> None:
    """Shows the interpreter's race detector what a wgmma reads."""
    if walk.interpret:
        for operand in operands:
            operand[...]
        plgpu.commit_smem()


def _store_rows(
    walk: Walk, refs: dict[str, Ref], shared: dict[str, Ref], group: Scalar, item: WorkItem, part: Part
) -> None:
    """The queries' outputs, as many as are the row's: by token, or in packed granules."""
    staging = shared["output"].at[group]
    put(staging, normalized(part).astype(walk.dtype))
    plgpu.commit_smem()
    if walk.stores_rows:
        _store_by_token(walk, refs, staging, group, item)
        return
    granules, queries = WARPGROUP_ROWS // GRANULE, refs["queries"][item.index]
    for g in range(granules):
        mine = lax.div(group, walk.slices) * granules + g
        source = staging.at[pl.ds(g * GRANULE, GRANULE)]
        target = refs["result_output"].at[item.head, item.granule + mine, :, _columns(walk, group)]
        pl.when(mine * GRANULE < queries)(partial(plgpu.copy_smem_to_gmem, source, target))


def _store_by_token(walk: Walk, refs: dict[str, Ref], staging: Ref, group: Scalar, item: WorkItem) -> None:
    """Copy rows one token, or some of its query heads, at a time."""
    rows, before = walk.copy_rows, lax.div(group, walk.slices) * WARPGROUP_ROWS
    first, queries = refs["first"][item.index] + before, refs["queries"][item.index] - before

    def copy(i: Scalar) -> None:
        query = first + i * rows
        token, head = lax.div(query, jnp.int32(walk.group)), lax.rem(query, jnp.int32(walk.group))
        target = refs["result_output"].at[token, item.head, pl.ds(head, rows), _columns(walk, group)]
        plgpu.copy_smem_to_gmem(staging.at[pl.ds(i * rows, rows)], target)

    repeat(0, lax.div(jnp.clip(queries, 0, WARPGROUP_ROWS), jnp.int32(rows)), copy)


def _store_piece(
    walk: Walk, refs: dict[str, Ref], shared: dict[str, Ref], group: Scalar, item: WorkItem, part: Part
) -> None:
    """Maxima, sums and outputs of one token's query heads."""
    rows = pl.ds(0, walk.piece_granules * GRANULE)
    for name, values in part._asdict().items():
        shared[name].at[group][...] = values
    plgpu.commit_smem()
    target = refs["result_output"].at[item.index, item.head, :, _columns(walk, group)]
    plgpu.copy_smem_to_gmem(shared["output"].at[group, rows], target)

    @pl.when(lax.rem(group, walk.slices) == 0)
    def _() -> None:
        for name in ("maximum", "total"):
            plgpu.copy_smem_to_gmem(shared[name].at[group, rows], refs[f"result_{name}"].at[item.index, item.head])


def _columns(walk: Walk, group: Scalar) -> Any:
    """Return the columns of a head's output that a warpgroup computes."""
    first = lax.rem(group, walk.slices) * walk.slice_dim
    return pl.ds(pl.multiple_of(first, walk.slice_dim), walk.slice_dim)
