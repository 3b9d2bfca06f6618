"""The walk over contexts on Hopper: a persistent grid takes items one after another; a program's last warpgroup fetches
queries, keys and values by bulk copies (TMA), the others compute, 64 packed queries each, on the same keys and values.

One body, two configurations. In pieces: an item is one piece of a decode's context, and its maximum, sum and output are
stored as they are. Whole: an item walks all of its context and merges the pieces in registers, in the same order and
with the same arithmetic as the kernel that combines stored pieces.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from pallas_kernels.gpu.attention_config import QUERY_SLOTS, Item, Ref, Scalar, Walk, for_each_item, scratch
from pallas_kernels.gpu.attention_fetch import fetch
from pallas_kernels.gpu.attention_items import GRANULE, KV_TILE, PIECE_TILES, WARPGROUP_ROWS, Items
from pallas_kernels.gpu.online_softmax import (
    FLOOR,
    LOG2_E,
    MASKED,
    Part,
    along_rows,
    ceiling,
    merge,
    normalized,
    power_of_two,
    sink,
)

_FETCH_REGISTERS = 40
_COMPUTE_REGISTERS = {1: 240, 2: 232}
"""Of a thread, by the number of computing warpgroups."""


def walk_contexts(
    walk: Walk,
    q: Float[Array, "K P D"],
    cache: Float[Array, "N L 2 K B D"],
    layer: Int[Array, ""],
    tables: Int[Array, "R M"],
    context_lens: Int[Array, "R"],
    items: Items,
    sinks: Float[Array, "K P"] | None,
) -> Any:
    """Outputs [K, P, D] of packed queries in the queries' dtype or, in pieces, a Part of n pieces in float32: maxima
    and sums [n, K, rows], outputs [n, K, rows, D]. What belongs to no item is undefined, and may be NaN. ``sinks`` are
    in the exponents' unit."""
    K, P, D = q.shape
    n, rows = len(items.row), walk.piece_granules * GRANULE
    operands = {"q": q, "cache": cache, "layer": layer[None], "tables": tables, "context_lens": context_lens}
    operands |= items._asdict()
    if sinks is not None:
        operands["sinks"] = sinks
    if walk.in_pieces:
        shapes = {"maximum": (n, K, rows), "total": (n, K, rows), "output": (n, K, rows, D)}
        results = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    else:
        results = {"output": jax.ShapeDtypeStruct((K, P // GRANULE, GRANULE, D), q.dtype)}
    names = (*operands, *(f"result_{name}" for name in results))

    def body(*refs: Ref, **shared: Ref) -> None:
        _program(walk, dict(zip(names, refs, strict=True)), shared)

    out = plgpu.kernel(
        body,
        out_type=tuple(results.values()),
        scratch_types=scratch(walk),
        grid=(walk.programs,),
        grid_names=("program",),
        num_threads=walk.compute_groups + 1,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=walk.interpret,
        kernel_name=walk.name,
    )(*operands.values())
    return Part(*out) if walk.in_pieces else out[0].reshape(K, P, D)


def _program(walk: Walk, refs: dict[str, Ref], shared: dict[str, Ref]) -> None:
    group = lax.axis_index("warpgroup")

    @pl.when(group == walk.compute_groups)
    def _() -> None:
        plgpu.set_max_registers(_FETCH_REGISTERS, action="decrease")
        fetch(walk, refs, shared)

    @pl.when(group < walk.compute_groups)
    def _() -> None:
        plgpu.set_max_registers(_COMPUTE_REGISTERS[walk.compute_groups], action="increase")
        for_each_item(walk, refs, partial(_attend, walk, refs, shared, group))
        plgpu.wait_smem_to_gmem(0)


def _attend(
    walk: Walk, refs: dict[str, Ref], shared: dict[str, Ref], group: Scalar, n: Scalar, item: Item, walked: Scalar
) -> Scalar:
    """One warpgroup's share of an item."""
    slot = lax.rem(n, QUERY_SLOTS)
    q = shared["q"].at[slot, group]
    fold = partial(_fold, walk, shared, group, q, item.origin + group * WARPGROUP_ROWS)
    plgpu.barrier_wait(shared["q_full"].at[slot])

    def piece(p: Scalar, carry: tuple[Part, Scalar]) -> tuple[Part, Scalar]:
        running, walked = carry
        first, last = jnp.maximum(item.begin, p * PIECE_TILES), jnp.minimum(item.end, (p + 1) * PIECE_TILES)
        part, walked = lax.fori_loop(first, last, fold, (_nothing(walk), walked))
        return merge(running, part), walked

    if walk.in_pieces:
        part, walked = lax.fori_loop(item.begin, item.end, fold, (_nothing(walk), walked))
    else:
        first, last = lax.div(item.begin, PIECE_TILES), lax.div(item.end + (PIECE_TILES - 1), PIECE_TILES)
        part, walked = lax.fori_loop(first, last, piece, (_beginning(walk, refs, group, item), walked))
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
    origin: Scalar,
    tile: Scalar,
    carry: tuple[Part, Scalar],
) -> tuple[Part, Scalar]:
    """One KV tile more."""
    part, walked = carry
    stage = lax.rem(walked, walk.stages)
    k, v = shared["k"].at[stage], shared["v"].at[stage]
    await_tile(shared["k_full"].at[stage])
    scores = jnp.where(_seen(walk, origin, tile), _scores(walk, q, k), MASKED)
    maximum = jnp.maximum(part.maximum, ceiling(scores.max(axis=1)))
    keep = power_of_two(part.maximum - maximum)
    weights = jnp.exp2(scores - along_rows(maximum, scores.shape))
    total = part.total * keep + weights.sum(axis=1)
    output = part.output * along_rows(keep, part.output.shape)
    await_tile(shared["v_full"].at[stage])
    output = _add_weighted(walk, shared, group, output, weights.astype(walk.dtype), v)
    _show(walk, k, v)
    plgpu.barrier_arrive(shared["consumed"].at[stage])
    return Part(maximum, total, output), walked + 1


def await_tile(full: Ref) -> None:
    """Until keys or values have arrived."""
    plgpu.barrier_wait(full)


def _seen(walk: Walk, origin: Scalar, tile: Scalar) -> Any:
    """Which keys of a tile each packed query sees. Query i of a warpgroup is query head (origin + i) % group at
    position (origin + i) // group, and key <= x // group is key * group <= x, so nothing is divided."""
    shape, layout = (WARPGROUP_ROWS, KV_TILE), plgpu.Layout.WGMMA
    query = plgpu.broadcasted_iota(jnp.int32, shape, 0, layout=layout)
    key = plgpu.broadcasted_iota(jnp.int32, shape, 1, layout=layout)
    ahead = query - key * walk.group
    least = tile * (KV_TILE * walk.group) - origin
    seen = ahead >= least
    if walk.window is not None:
        seen &= ahead < least + walk.window * walk.group
    return seen


def _scores(walk: Walk, q: Ref, k: Ref) -> Any:
    """Of a warpgroup's queries and a tile of keys, in the exponents' unit."""
    _show(walk, q, k)

    def product(accumulator: Ref) -> Any:
        plgpu.wgmma(accumulator, q, k.transpose((1, 0)))
        return accumulator[...]

    scores = pl.run_scoped(product, plgpu.WGMMAAccumulatorRef((WARPGROUP_ROWS, KV_TILE), jnp.float32))
    if walk.soft_cap is None:
        return scores * (walk.scale * LOG2_E)
    return jnp.tanh(scores * (walk.scale / walk.soft_cap)) * (walk.soft_cap * LOG2_E)


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


def _nothing(walk: Walk) -> Part:
    """Of no keys."""
    shape, rows = (WARPGROUP_ROWS, walk.head_dim), plgpu.Layout.WGMMA.reduce(1)
    return Part(
        plgpu.layout_cast(jnp.full(shape[:1], FLOOR, jnp.float32), rows),
        plgpu.layout_cast(jnp.zeros(shape[:1], jnp.float32), rows),
        plgpu.layout_cast(jnp.zeros(shape, jnp.float32), plgpu.Layout.WGMMA),
    )


def _beginning(walk: Walk, refs: dict[str, Ref], group: Scalar, item: Item) -> Part:
    """Of no keys, or of each query head's sink."""
    nothing = _nothing(walk)
    if "sinks" not in refs:
        return nothing
    first = pl.multiple_of(item.granule * GRANULE + group * WARPGROUP_ROWS, GRANULE)
    source = refs["sinks"].at[item.head, pl.ds(first, WARPGROUP_ROWS)]
    sinks = plgpu.load(source, layout=plgpu.Layout.WGMMA.reduce(1), optimized=False)
    return sink(sinks, nothing.output)


def _store_rows(
    walk: Walk, refs: dict[str, Ref], shared: dict[str, Ref], group: Scalar, item: Item, part: Part
) -> None:
    """The queries' outputs, as many granules as are the row's."""
    staging = shared["output"].at[group]
    staging[...] = normalized(part).astype(walk.dtype)
    plgpu.commit_smem()
    granules = WARPGROUP_ROWS // GRANULE
    for g in range(granules):
        mine = group * granules + g
        source = staging.at[pl.ds(g * GRANULE, GRANULE)]
        target = refs["result_output"].at[item.head, item.granule + mine]
        pl.when(mine < item.granules)(partial(plgpu.copy_smem_to_gmem, source, target))


def _store_piece(
    walk: Walk, refs: dict[str, Ref], shared: dict[str, Ref], group: Scalar, item: Item, part: Part
) -> None:
    """Maxima, sums and outputs of one token's query heads."""
    rows = pl.ds(0, walk.piece_granules * GRANULE)
    for name, values in part._asdict().items():
        shared[name].at[group][...] = values
    plgpu.commit_smem()
    for name in Part._fields:
        plgpu.copy_smem_to_gmem(shared[name].at[group, rows], refs[f"result_{name}"].at[item.index, item.head])
