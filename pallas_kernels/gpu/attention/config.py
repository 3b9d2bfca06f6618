"""The configuration of a walk over contexts, its shared memory, and the items that a CTA takes."""

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gpu import persistent, shared_memory
from pallas_kernels.gpu.attention.items import GRANULE, KV_TILE, WARPGROUP_ROWS, value_slices
from pallas_kernels.gpu.attention.online_softmax import LOG2_E
from pallas_kernels.gpu.persistent import Interpret, Ref

Scalar = Any

_RESERVED = 3072
"""Of these for barriers, maxima and sums, each aligned to 1024 bytes."""
_MOST_STAGES = 4
_LEAST_STAGES = 2
_SCALE_BYTES = 4
FIELDS = ("row", "granule", "origin", "begin", "end")
"""Fields of an item, as in items.WorkItems, that a walk needs. Others are read where outputs are stored: registers are
few."""


@dataclass(frozen=True)
class Walk:
    """The static configuration."""

    kv_heads: int
    group: int
    head_dim: int
    block_size: int
    dtype: Any
    scale: float
    window: int | None
    soft_cap: float | None
    tile_groups: int
    """Warpgroups of WARPGROUP_ROWS packed queries in a tile: 1 or 2."""
    in_pieces: bool
    num_ctas: int
    bulk: bool
    """By bulk copies (TMA), which need Hopper or newer; else by cp.async."""
    wgmma: bool
    """With wgmma, which only Hopper has, and a warpgroup that fetches; else with mma, one warpgroup doing all."""
    registers: tuple[int, ...]
    """Registers of a thread on Hopper: in the warpgroup that fetches, that which converts codes if there are any, and
    in the warpgroups that compute."""
    interpret: Interpret
    """Run in the interpreter.

    It knows neither weights in registers nor accumulators that begin with a value, so there weights go through shared
    memory. Its race detector overlooks the reads of wgmma, so operands are read before and after it.
    """
    codes: Any = None
    """The dtype of the cache's codes, which become numbers of ``dtype`` in shared memory; None: it has numbers."""

    @property
    def name(self) -> str:
        """The kernel's name in profiles."""
        return "attention_in_pieces" if self.in_pieces else "attention_of_tiles"

    @property
    def layout(self) -> Any:
        """The layout of products in registers."""
        return plgpu.Layout.WGMMA if self.wgmma else plgpu.Layout.MMA_ACC(jnp.float32)

    @property
    def unit(self) -> float:
        """The unit of scores, in exponents of 2; positive."""
        return (self.scale if self.soft_cap is None else self.soft_cap) * LOG2_E

    @property
    def copies(self) -> int:
        """Blocks that make up a KV tile."""
        return max(1, KV_TILE // self.block_size)

    @property
    def piece_granules(self) -> int:
        """Granules of one token's packed queries."""
        return -(-self.group // GRANULE)

    @property
    def slices(self) -> int:
        """Slices of a head's values: warpgroups that compute the same weights for different values."""
        return value_slices(self.head_dim)

    @property
    def slice_dim(self) -> int:
        return self.head_dim // self.slices

    @property
    def copy_rows(self) -> int:
        """Packed queries of one token that are copied together: as many as each tile has a whole number of."""
        return gcd(self.group, WARPGROUP_ROWS)

    @property
    def stores_rows(self) -> bool:
        """Whether outputs are stored by token. Else they are packed as queries are, and XLA unpacks them."""
        copied = self.copy_rows * self.slice_dim * jnp.dtype(self.dtype).itemsize
        return self.wgmma and copied % shared_memory.COPY_ALIGNMENT == 0

    @property
    def compute_groups(self) -> int:
        """Warpgroups that compute. Number ``g`` has rows ``g // slices`` and slice ``g % slices`` of a tile."""
        return self.tile_groups * self.slices

    @property
    def warpgroups(self) -> int:
        """Warpgroups of a CTA: on Hopper one more fetches, and one converts codes."""
        return self.compute_groups + self.wgmma * (1 if self.codes is None else 2)

    @property
    def query_slots(self) -> int:
        """Tiles of queries in shared memory: that of the item being computed and, if there is room, the next one's."""
        return 2 if self._stages(query_slots=2) >= _LEAST_STAGES else 1

    @property
    def stages(self) -> int:
        """KV tiles in shared memory: as many as fit, so that they are fetched ahead."""
        most = _MOST_STAGES if self.codes is None else _LEAST_STAGES
        return min(most, self._stages(self.query_slots))

    @property
    def code_stages(self) -> int:
        """KV tiles of codes in shared memory: as many as fit with their numbers."""
        left = self._left(self.query_slots) - self.stages * 2 * KV_TILE * self._row
        return min(_MOST_STAGES, left // self._code_tile)

    @property
    def _row(self) -> int:
        """Bytes of a head's numbers."""
        return self.head_dim * jnp.dtype(self.dtype).itemsize

    @property
    def _code_tile(self) -> int:
        """Bytes of a KV tile of codes, with their scales."""
        return 0 if self.codes is None else 2 * KV_TILE * (self.head_dim + _SCALE_BYTES)

    def _stages(self, query_slots: int) -> int:
        return self._left(query_slots) // (2 * KV_TILE * self._row + self._code_tile)

    def _left(self, query_slots: int) -> int:
        """Return the bytes of shared memory that queries and outputs leave."""
        out = self.head_dim * 4 if self.in_pieces else self._row
        return shared_memory.HOPPER - _RESERVED - self.tile_groups * WARPGROUP_ROWS * (query_slots * self._row + out)


class WorkItem(NamedTuple):
    """One item as a CTA sees it: its place in the list, its kv head, the list's fields, and its row's context."""

    index: Scalar
    head: Scalar
    row: Scalar
    granule: Scalar
    origin: Scalar
    begin: Scalar
    end: Scalar
    context: Scalar


def for_each_item(
    walk: Walk, refs: dict[str, Ref], body: Callable[[Scalar, WorkItem, Scalar], Scalar]
) -> tuple[Scalar, Scalar]:
    """Call ``body(items before, item, KV tiles before)`` for each of this CTA's items.

    ``body`` returns the KV tiles before the next item. Returns the number of items and of KV tiles.
    """
    items = persistent.CtaItems(refs["num_items"][0] * walk.kv_heads, walk.num_ctas)

    def step(n: Scalar, tiles: Scalar) -> Scalar:
        at = items[n]
        index = lax.div(at, walk.kv_heads)
        fields = {name: refs[name][index] for name in FIELDS}
        context = refs["context_lens"][fields["row"]]
        item = WorkItem(index, lax.rem(at, walk.kv_heads), **fields, context=context)
        return body(n, item, tiles)

    return items.mine, lax.fori_loop(0, items.mine, step, jnp.int32(0))


def slots_of(walk: Walk, refs: dict[str, Ref], item: WorkItem, tile: Scalar, copy: int) -> tuple[Scalar, Any]:
    """The block and the slots in it of one copy of a KV tile; past the context those of the context's last block again,
    which are masked."""
    token = jnp.minimum(tile * KV_TILE + copy * walk.block_size, item.context - 1)
    count = min(walk.block_size, KV_TILE)
    start = lax.rem(lax.div(token, count), walk.block_size // count) * count
    return refs["tables"][item.row, lax.div(token, walk.block_size)], pl.ds(pl.multiple_of(start, count), count)


def scratch(walk: Walk) -> dict[str, Any]:
    n, rows, stages, slots = walk.compute_groups, WARPGROUP_ROWS, walk.stages, walk.query_slots
    out_dtype, by_token = (jnp.float32, False) if walk.in_pieces else (walk.dtype, walk.stores_rows)
    kinds = {
        "q": tiled((slots, walk.tile_groups, rows, walk.head_dim), walk.dtype),
        "k": tiled((stages, KV_TILE, walk.head_dim), walk.dtype),
        "v": tiled((stages, walk.slices, KV_TILE, walk.slice_dim), walk.dtype),
        "output": (plgpu.SMEM if by_token else tiled)((n, rows, walk.slice_dim), out_dtype),
        "q_full": plgpu.Barrier(num_arrivals=walk.tile_groups, num_barriers=slots),
        "q_consumed": plgpu.Barrier(num_arrivals=n, num_barriers=slots),
        "k_full": plgpu.Barrier(num_arrivals=walk.copies, num_barriers=stages),
        "v_full": plgpu.Barrier(num_arrivals=walk.copies * walk.slices, num_barriers=stages),
        "consumed": plgpu.Barrier(num_arrivals=n, num_barriers=stages),
    }
    if walk.codes is not None:
        kinds |= code_scratch(walk)
    if walk.tile_groups > 1:
        kinds["v_hidden"] = plgpu.Barrier(num_arrivals=walk.slices, num_barriers=stages)
    if walk.in_pieces:
        kinds |= {name: plgpu.SMEM((n, rows), jnp.float32) for name in ("maximum", "total")}
    if walk.interpret:
        kinds["weights"] = tiled((n, rows, KV_TILE), walk.dtype)
    return kinds


def code_scratch(walk: Walk) -> dict[str, Any]:
    """Return memory for tiles of codes and the bytes of their scales, and the barriers of those who convert them."""
    stages, of_numbers = walk.code_stages, walk.stages
    return {
        "codes": tiled((stages, 2, KV_TILE, walk.head_dim), walk.codes),
        "scales": plgpu.SMEM((stages, 2, _SCALE_BYTES, KV_TILE), walk.codes),
        "codes_full": plgpu.Barrier(num_arrivals=4, num_barriers=stages),
        "codes_consumed": plgpu.Barrier(num_barriers=stages),
        "k_full": plgpu.Barrier(num_barriers=of_numbers),
        "v_full": plgpu.Barrier(num_barriers=of_numbers),
    }


def tiled(shape: tuple[int, ...], dtype: Any) -> Any:
    """Shared memory in the widest swizzle that divides a row."""
    size = jnp.dtype(dtype).itemsize
    swizzle = next(s for s in (128, 64, 32) if shape[-1] * size % s == 0)
    tiling = plgpu.TilingTransform((GRANULE, swizzle // size))  # type: ignore[abstract]
    transforms = (tiling, plgpu.SwizzleTransform(swizzle))  # type: ignore[abstract]
    return plgpu.SMEM(shape, dtype, transforms=transforms)
