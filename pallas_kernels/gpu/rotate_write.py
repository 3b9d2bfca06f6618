"""Norm, rotate and scale queries and keys, and write K and V to their slots of the blocked KV cache, for Hopper.

A warpgroup takes one head of a tile of tokens. Each token's row goes to a place of its own by a bulk copy: of keys and
values a slot of the cache, of queries the place where attention reads them.
"""

from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Num

from pallas_kernels.gpu.attention.items import AttentionPlan, PackedQueries
from pallas_kernels.gpu.code_tiles import code_scratch, encode_tile, write_scale
from pallas_kernels.gpu.norm_support import TILE
from pallas_kernels.gpu.persistent import CTA, H200_MULTIPROCESSORS, CtaItems, Interpret, Ref, put, repeat
from pallas_kernels.gpu.rotation_support import supports
from pallas_kernels.kv_codes import code_rows, has_codes, head_dim_of
from pallas_kernels.rotary import Angles
from pallas_kernels.rotate_write import HeadNorms

CTAS_EACH = 4
"""Thread blocks of one warpgroup for each multiprocessor: they wait for memory most of their time."""
_STEP = 32
"""Most columns that are rotated at a time: registers hold few."""


def rotate_write(
    projected: Float[Array, "T N"],
    cache: Num[Array, "M L 2 K B W"],
    layer: Int[Array, ""],
    slots: Int[Array, "T"],
    num_tokens: Int[Array, ""],
    angles: Angles | None,
    norms: HeadNorms | None = None,
    query_scale: Float[Array, "T 1 1"] | None = None,
    *,
    heads: int,
    first_key: int,
    eps: float = 0.0,
    plan: AttentionPlan | None = None,
    num_ctas: int = H200_MULTIPROCESSORS,
    interpret: Interpret = None,
) -> tuple[Float[Array, "T H D"] | PackedQueries, Num[Array, "M L 2 K B W"]]:
    """Compute ``rotate_write_ref`` on a GPU. A cache of codes has its scales ``kv_codes.apart``.

    ``plan``: return PackedQueries, as the attention of this plan reads them. A norm's order of sums is that of
    pallas_kernels.gpu.norms, by the row alone. NotImplementedError where ``supports`` says why.

    Bytes moved: 2 * T * (H + 2 * K) * D * itemsize, and the angles for each head. Tiles of padding are skipped.
    """
    K, D, coded = cache.shape[3], head_dim_of(cache.shape[5], cache.dtype), has_codes(cache.dtype)
    pairs = 0 if angles is None else angles[0].shape[-1]
    if reason := supports(head_dim=D, rotary_pairs=pairs, dtype=projected.dtype.name if coded else cache.dtype.name):
        raise NotImplementedError(reason)
    if not coded and projected.dtype != cache.dtype:
        raise NotImplementedError(f"the projection is {projected.dtype}, the cache {cache.dtype}")
    T, missing = len(projected), -len(projected) % TILE

    def whole_tiles(x: Float[Array, "T ..."]) -> Float[Array, "T2 ..."]:
        return jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)) if missing else x

    operands = {"count": jnp.asarray(num_tokens, jnp.int32).reshape(1), "layer": layer.reshape(1), "slots": slots}
    operands["projected"] = whole_tiles(projected).reshape(T + missing, -1, D)
    if angles is not None:
        operands |= {name: whole_tiles(x.reshape(T, pairs)) for name, x in zip(("cos", "sin"), angles, strict=True)}
    if norms is not None:
        operands |= dict(zip(("q_norm", "k_norm"), norms, strict=True))
    if query_scale is not None:
        operands["query_scale"] = whole_tiles(query_scale.reshape(T))
    if plan is not None:
        operands["place"] = plan.packing.place
    shape = (T, heads, D) if plan is None else (K, len(plan.packing.token), D)
    names = ("cache", *operands, "q")
    layout = _Heads(heads, K, first_key, D, cache.shape[4], cache.shape[0], eps)

    def body(*refs: Ref, **shared: Ref) -> None:
        _cta(layout, dict(zip(names, refs, strict=True)), shared, CTAS_EACH * num_ctas)

    ref: Any = jax.new_ref(code_rows(cache) if coded else cache)
    q = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(shape, projected.dtype),
        scratch_types={
            "numbers": plgpu.SMEM((TILE, D), projected.dtype),
            **(code_scratch(TILE, D, cache.dtype) if coded else {}),
        },
        grid=(CTAS_EACH * num_ctas,),
        grid_names=(CTA,),
        # A row is reduced within a warp, which takes no shared memory.
        compiler_params=plgpu.CompilerParams(reduction_scratch_bytes=0),
        interpret=interpret,
        kernel_name="rotate_write",
    )(ref, *operands.values())
    return q if plan is None else PackedQueries(q), jax.freeze(ref).reshape(cache.shape)


@dataclass(frozen=True)
class _Heads:
    """The heads of a projection, and the shape of the cache."""

    queries: int
    keys: int
    first_key: int
    head_dim: int
    block_size: int
    num_blocks: int
    eps: float

    @property
    def all(self) -> int:
        return self.queries + 2 * self.keys


def _cta(heads: _Heads, refs: dict[str, Ref], shared: dict[str, Ref], num_ctas: int) -> None:
    count, staging, codes = refs["count"][0], shared["numbers"], shared.get("codes")
    items = CtaItems(lax.div(count + (TILE - 1), jnp.int32(TILE)) * heads.all, num_ctas)
    tokens_per_block, num_slots = jnp.int32(heads.block_size), heads.num_blocks * heads.block_size

    def one(n: Int[Array, ""]) -> None:
        first, head = lax.div(items[n], jnp.int32(heads.all)) * TILE, lax.rem(items[n], jnp.int32(heads.all))
        rows = pl.ds(pl.multiple_of(first, TILE), TILE)
        is_query, key = head < heads.queries, head - heads.queries
        at = jnp.where(is_query, head, key + heads.first_key)
        loaded = plgpu.load(refs["projected"].at[rows, at], layout=plgpu.Layout.WGMMA, optimized=False)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # the item before this one has left ``staging``
        turn = partial(_turn, heads, refs, rows, loaded, staging)
        pl.when(is_query)(lambda: turn("q_norm", "query_scale"))
        pl.when(jnp.logical_not(is_query) & (key < heads.keys))(lambda: turn("k_norm", None))
        pl.when(key >= heads.keys)(lambda: put(staging, loaded))
        plgpu.commit_smem()
        if codes is not None:
            pl.when(jnp.logical_not(is_query))(lambda: encode_tile(staging, codes, shared["scales"]))

        def write_query(i: Int[Array, ""]) -> None:
            plgpu.copy_smem_to_gmem(staging.at[pl.ds(i, 1)], _query_row(heads, refs, first + i, head))

        def write_slot(i: Int[Array, ""]) -> None:
            slot = refs["slots"][first + i]

            @pl.when(slot < num_slots)
            def _() -> None:
                block, offset = lax.div(slot, tokens_per_block), lax.rem(slot, tokens_per_block)
                which, of = lax.div(key, jnp.int32(heads.keys)), lax.rem(key, jnp.int32(heads.keys))
                layer = refs["layer"][0]
                if codes is None:
                    place = refs["cache"].at[block, layer, which, of, pl.ds(offset, 1)]
                    plgpu.copy_smem_to_gmem(staging.at[pl.ds(i, 1)], place)
                    return
                rows = refs["cache"].at[block, layer]
                source = codes.at[pl.ds(i, 1), pl.ds(0, heads.head_dim)]
                plgpu.copy_smem_to_gmem(source, rows.at[pl.ds(key * tokens_per_block + offset, 1)])
                write_scale(shared["scales"][i], rows, heads.keys, heads.head_dim, heads.block_size, key, offset)

        last = jnp.minimum(count - first, TILE)
        pl.when(is_query)(lambda: repeat(0, last, write_query))
        pl.when(jnp.logical_not(is_query))(lambda: repeat(0, last, write_slot))

    repeat(0, items.mine, one)
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)


def _query_row(heads: _Heads, refs: dict[str, Ref], token: Int[Array, ""], head: Int[Array, ""]) -> Ref:
    """Return the place of a token's query head, as a row."""
    if "place" not in refs:
        return refs["q"].at[token, pl.ds(head, 1)]
    group = jnp.int32(heads.queries // heads.keys)
    return refs["q"].at[lax.div(head, group), pl.ds(refs["place"][token] + lax.rem(head, group), 1)]


def _turn(heads: _Heads, refs: dict[str, Ref], rows: Any, x: Array, staging: Ref, norm: str, scale: str | None) -> None:
    """Put a tile of one head into ``staging``: with its norm, rotated and scaled, as far as there are such operands."""
    load, D = partial(plgpu.load, layout=plgpu.Layout.WGMMA, optimized=False), heads.head_dim
    half = refs["cos"].shape[1] if "cos" in refs else 0
    factor = None
    if norm in refs:
        x = _normed(x, refs[norm], heads.eps)
    if scale in refs:
        factor = plgpu.load(refs[scale].at[rows], layout=plgpu.Layout.WGMMA.reduce(1), optimized=False)

    def keep(begin: int, width: int, computed: Array | None = None) -> None:
        """Store some columns of the tile, computed or as they are."""
        values = (x[:, begin : begin + width] if computed is None else computed).astype(x.dtype)
        if factor is not None:
            values = (values.astype(jnp.float32) * lax.broadcast_in_dim(factor, values.shape, (0,))).astype(x.dtype)
        put(staging.at[:, begin : begin + width], values)

    step = gcd(half, D, _STEP)  # memory is divided in equal parts
    for begin in range(0, half, step):
        first, second = (x[:, at : at + step].astype(jnp.float32) for at in (begin, half + begin))
        cos, sin = (load(refs[name].at[rows, pl.ds(begin, step)]) for name in ("cos", "sin"))
        keep(begin, step, first * cos - second * sin)
        keep(half + begin, step, second * cos + first * sin)
    rest = gcd(2 * half, D, _STEP)
    for begin in range(2 * half, D, rest):
        keep(begin, rest)


def _normed(x: Float[Array, "64 D"], weight: Ref, eps: float) -> Float[Array, "64 D"]:
    """Return the RMS norm of each row, in the order of sums of pallas_kernels.gpu.norms."""
    wide = x.astype(jnp.float32)
    mean = lax.broadcast_in_dim(jnp.sum(wide * wide, axis=1) / x.shape[1], x.shape, (0,))
    loaded = plgpu.load(weight, layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)
    factors = lax.broadcast_in_dim(loaded, x.shape, (1,))
    return (factors * (wide * lax.rsqrt(mean + eps)).astype(factors.dtype)).astype(x.dtype)
