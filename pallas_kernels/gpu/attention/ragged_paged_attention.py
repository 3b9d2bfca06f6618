"""Attention of a ragged batch over a blocked KV cache, for Hopper, and with ``mma`` for Ampere, Ada and
Blackwell.

Decodes' contexts are cut in pieces of PIECE_TOKENS that any CTA may take, so that a few long ones fill the device. The
pieces are combined afterwards. Rows of more tokens are cut in tiles. A CTA walks a tile's whole context and merges its
pieces as it proceeds. Either way a token's pieces begin at the same tokens, are computed by the same instructions and
merged from the left. So a token's output is bit for bit the same for any batch and any chunks of its prompt.
online_softmax says why that holds across differently compiled kernels.
"""

from dataclasses import replace
from functools import partial

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Num

from pallas_kernels.gpu.attention.combine import combine_pieces
from pallas_kernels.gpu.attention.config import Walk
from pallas_kernels.gpu.attention.items import (
    KV_TILE,
    MOST_VALUES,
    WARPGROUP_ROWS,
    AttentionPlan,
    PackedQueries,
    best_tile_groups,
    make_plan,
    pack,
    unpack,
)
from pallas_kernels.gpu.attention.online_softmax import LOG2_E
from pallas_kernels.gpu.attention.plan import plan_in_kernel
from pallas_kernels.gpu.attention.walk import walk_contexts
from pallas_kernels.gpu.persistent import H200_MULTIPROCESSORS, REGISTERS, Interpret
from pallas_kernels.gpu.rotation_support import cache_code_trouble
from pallas_kernels.kv_codes import has_codes, head_dim_of

_DTYPES = ("bfloat16", "float16")
_BLOCK_SIZES = (16, 32)
_HEAD_DIMS = (64, 80, 96, 128, 256)


CODE_REGISTERS = {1: (40, 112, 240), 2: (24, 56, 216)}
"""Registers of a thread, by the warpgroups that compute, where one more converts codes: see Walk.registers.

Three warpgroups are launched with 168 registers a thread, four with 128.
"""


class UnsupportedError(ValueError):
    """The kernel cannot do this; the message says why."""


def supports(
    *, heads: int, kv_heads: int, head_dim: int, block_size: int, dtype: str, wgmma: bool = True, coded: bool = False
) -> str | None:
    """Why the kernel cannot do a model's attention, or None if it can. ``coded``: with a cache of 8-bit codes."""
    head_dims = tuple(D for D in _HEAD_DIMS if wgmma or D <= MOST_VALUES)
    if dtype not in _DTYPES:
        return f"keys and values are {dtype}, not {' or '.join(_DTYPES)}"
    if head_dim not in head_dims:
        return f"head_dim is {head_dim}, none of {head_dims}"
    if block_size not in _BLOCK_SIZES and block_size % KV_TILE:
        return f"block_size is {block_size}, neither one of {_BLOCK_SIZES} nor a multiple of {KV_TILE}"
    if coded and not wgmma:
        return "a cache of 8 bits is read on compute capability 9.0 only"
    if coded and (reason := cache_code_trouble(kv_heads=kv_heads, head_dim=head_dim, block_size=block_size)):
        return reason
    if heads % kv_heads:
        return f"{heads} query heads are not a multiple of {kv_heads} kv heads"
    if heads // kv_heads > WARPGROUP_ROWS:
        return f"{heads} query heads on {kv_heads} kv heads are more than {WARPGROUP_ROWS} on each"
    return None


def ragged_paged_attention(
    q: Float[Array, "T H D"] | PackedQueries,
    cache: Num[Array, "N L 2 K B W"],
    layer: Int[Array, ""],
    block_tables: Int[Array, "R M"],
    query_starts: Int[Array, "R1"],
    context_lens: Int[Array, "R"],
    num_rows: Int[Array, ""],
    num_decodes: Int[Array, ""],
    *,
    scale: float,
    window: int | Int[Array, ""] | None = None,
    soft_cap: float | None = None,
    sinks: Float[Array, "H"] | None = None,
    plan: AttentionPlan | None = None,
    num_ctas: int = H200_MULTIPROCESSORS,
    bulk: bool = True,
    wgmma: bool = True,
    registers: tuple[int, int] = REGISTERS,
    interpret: Interpret = None,
) -> Float[Array, "T H D"]:
    """Compute ``ragged_paged_attention_ref`` on a GPU.

    These differ from the twin: scale is positive, ``window`` is not an array, and q has the cache's dtype, bfloat16 or
    float16, or is packed as the ``plan`` says. A cache of codes has its scales ``kv_codes.apart``. Outputs have the
    bits of a cache with the numbers, of q's dtype, that the codes stand for.

    ``plan``: the result of ``plan_attention`` for this window, made once for many layers, since XLA moves little of it
    out of a scan. ``bulk``: use bulk copies, which need Hopper or newer. ``wgmma``: use wgmma, which only Hopper has;
    without it, heads are of at most MOST_VALUES. ``registers``: their division among a CTA's threads, see
    persistent.REGISTERS. Raises UnsupportedError for arguments that ``supports`` refuses, and for a window that is an
    array.

    Reads 2 * K * D elements per context token of each decode, and of each tile of other rows. A tile is 64 packed
    queries if a CTA then has at most one tile, else 128. Computes 4 * D * H FLOPs per context token and query, where a
    decode counts as WARPGROUP_ROWS / group queries. Work and memory are bounded by T, R and the cache, never by M.
    """
    of_queries = q.rows.dtype if isinstance(q, PackedQueries) else q.dtype
    K, B, D = _heads_of(cache)
    if not (window is None or isinstance(window, int)):
        raise UnsupportedError("attention kernel: window is an array: each window has a plan and a trace of its own")
    if plan is None:
        assert not isinstance(q, PackedQueries), "a plan says how queries are packed"
        _check(of_queries, q.shape[1], cache, wgmma)
        rows = query_starts, context_lens, num_rows, num_decodes
        plan = plan_attention(q, cache, *rows, window=window, num_ctas=num_ctas, wgmma=wgmma)
    T, group = len(plan.packing.place), plan.group
    H = K * group
    _check(of_queries, H, cache, wgmma)
    decodes = Walk(
        kv_heads=K,
        group=group,
        head_dim=D,
        block_size=B,
        dtype=of_queries,
        scale=scale,
        window=window,
        soft_cap=soft_cap,
        tile_groups=1,
        in_pieces=True,
        num_ctas=num_ctas,
        bulk=bulk,
        wgmma=wgmma,
        registers=registers,
        interpret=interpret,
        codes=cache.dtype if has_codes(cache.dtype) else None,
    )
    packed = q.rows if isinstance(q, PackedQueries) else pack(q, plan.packing, K)
    exponents, packed_exponents = None, None
    if sinks is not None:
        exponents = sinks.astype(jnp.float32) * LOG2_E
        packed_exponents = pack(jnp.broadcast_to(exponents[:, None], (T, H, 1)), plan.packing, K)[..., 0]
    context = cache, layer, block_tables, plan.context_lens
    parts = walk_contexts(_registered(decodes), packed, *context, plan.pieces.items, None, T)
    tiles = replace(decodes, tile_groups=plan.tile_groups, in_pieces=False)
    whole = walk_contexts(_registered(tiles), packed, *context, plan.tiles, packed_exponents, T)
    if not tiles.stores_rows:
        return unpack(whole, combine_pieces(decodes, plan.pieces, parts, exponents, None), plan.packing, group)
    return combine_pieces(decodes, plan.pieces, parts, exponents, whole)[:, :, :group].reshape(T, H, D)


def plan_attention(
    q: Float[Array, "T H D"],
    cache: Num[Array, "N L 2 K B W"],
    query_starts: Int[Array, "R1"],
    context_lens: Int[Array, "R"],
    num_rows: Int[Array, ""],
    num_decodes: Int[Array, ""],
    *,
    window: int | None = None,
    num_ctas: int = H200_MULTIPROCESSORS,
    wgmma: bool = True,
    in_kernel: bool = False,
    interpret: Interpret = None,
) -> AttentionPlan:
    """What ``ragged_paged_attention`` of these arrays does before all else, and that is the same in every layer of the
    same window; for the same ``wgmma``. Of q and cache only the shapes matter. ``in_kernel``: by one kernel."""
    num_blocks, K, B = cache.shape[0], *cache.shape[3:5]
    T, H, D = q.shape
    group = H // K
    make = partial(plan_in_kernel, interpret=interpret) if in_kernel else make_plan
    return make(
        query_starts,
        context_lens,
        num_rows,
        num_decodes,
        T=T,
        group=group,
        num_blocks=num_blocks,
        block_size=B,
        window=window,
        tile_groups=best_tile_groups(T, group, K, D, num_ctas) if wgmma else 1,
    )


def _registered(walk: Walk) -> Walk:
    """Return the walk with registers for a warpgroup that converts codes, if there are any."""
    return walk if walk.codes is None else replace(walk, registers=CODE_REGISTERS[walk.compute_groups])


def _heads_of(cache: Num[Array, "N L 2 K B W"]) -> tuple[int, int, int]:
    """Return a cache's kv heads, tokens of a block, and numbers of a head."""
    K, B, W = cache.shape[3:]
    return K, B, head_dim_of(W, cache.dtype)


def _check(of_queries: DTypeLike, heads: int, cache: Num[Array, "N L 2 K B W"], wgmma: bool) -> None:
    K, B, D = _heads_of(cache)
    dtype, coded = jnp.dtype(of_queries).name, has_codes(cache.dtype)
    reason = supports(heads=heads, kv_heads=K, head_dim=D, block_size=B, dtype=dtype, wgmma=wgmma, coded=coded)
    if reason is None and not coded and of_queries != cache.dtype:
        reason = f"queries are {of_queries}, keys and values {jnp.dtype(cache.dtype).name}"
    if reason is not None:
        raise UnsupportedError(f"attention kernel: {reason}")
