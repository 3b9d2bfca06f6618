"""What a walk over contexts is compiled for, its shared memory, and the items that a program takes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gpu.attention_items import GRANULE, KV_TILE, WARPGROUP_ROWS

Ref = Any
Scalar = Any

SHARED_MEMORY = 227 * 1024
"""Bytes of shared memory that a program may have on Hopper."""
_RESERVED = 2048
"""Of these for barriers, maxima, sums and alignment."""
QUERY_SLOTS = 2
"""Tiles of queries in shared memory: that of the item being computed and the next one's."""
_MOST_STAGES = 4
FIELDS = ("row", "granule", "granules", "origin", "begin", "end")
"""Of an item, as in attention_items.Items."""


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
    compute_groups: int
    """Warpgroups that compute: 1 or 2."""
    in_pieces: bool
    programs: int
    interpret: Any
    """None, or plgpu.InterpretGPUParams. The interpreter knows neither weights in registers nor accumulators that
    begin with a value, so there weights go through shared memory; and as its race detector overlooks what wgmma reads,
    operands are read before it and after it."""

    @property
    def name(self) -> str:
        """In profiles."""
        return "attention_in_pieces" if self.in_pieces else "attention_of_tiles"

    @property
    def copies(self) -> int:
        """Blocks that make up a KV tile."""
        return max(1, KV_TILE // self.block_size)

    @property
    def piece_granules(self) -> int:
        """Granules of one token's packed queries."""
        return -(-self.group // GRANULE)

    @property
    def stages(self) -> int:
        """KV tiles in shared memory: as many as fit, so that they are fetched ahead."""
        row = self.head_dim * jnp.dtype(self.dtype).itemsize
        out = self.head_dim * 4 if self.in_pieces else row
        weights = KV_TILE * jnp.dtype(self.dtype).itemsize if self.interpret else 0
        rows = self.compute_groups * WARPGROUP_ROWS
        left = SHARED_MEMORY - _RESERVED - rows * (QUERY_SLOTS * row + out + weights)
        return min(_MOST_STAGES, left // (2 * KV_TILE * row))


class Item(NamedTuple):
    """One item as a program sees it: its place in the list, its kv head, and the list's fields."""

    index: Scalar
    head: Scalar
    row: Scalar
    granule: Scalar
    granules: Scalar
    origin: Scalar
    begin: Scalar
    end: Scalar


def for_each_item(
    walk: Walk, refs: dict[str, Ref], body: Callable[[Scalar, Item, Scalar], Scalar]
) -> tuple[Scalar, Scalar]:
    """Calls ``body(items before, item, KV tiles before)``, which returns the KV tiles before the next item, for each of
    this program's items; returns how many items and KV tiles there were."""
    program = lax.axis_index("program")
    steps = lax.div(refs["num_items"][0] * walk.kv_heads - program + (walk.programs - 1), walk.programs)

    def step(n: Scalar, tiles: Scalar) -> Scalar:
        at = n * walk.programs + program
        index = lax.div(at, walk.kv_heads)
        item = Item(index, lax.rem(at, walk.kv_heads), *(refs[name][index] for name in FIELDS))
        return body(n, item, tiles)

    return steps, lax.fori_loop(0, steps, step, jnp.int32(0))


def scratch(walk: Walk) -> dict[str, Any]:
    n, rows, D = walk.compute_groups, WARPGROUP_ROWS, walk.head_dim
    kinds = {
        "q": tiled((QUERY_SLOTS, n, rows, D), walk.dtype),
        "k": tiled((walk.stages, KV_TILE, D), walk.dtype),
        "v": tiled((walk.stages, KV_TILE, D), walk.dtype),
        "output": tiled((n, rows, D), jnp.float32 if walk.in_pieces else walk.dtype),
        "q_full": plgpu.Barrier(num_arrivals=n, num_barriers=QUERY_SLOTS),
        "q_consumed": plgpu.Barrier(num_arrivals=n, num_barriers=QUERY_SLOTS),
        "k_full": plgpu.Barrier(num_arrivals=walk.copies, num_barriers=walk.stages),
        "v_full": plgpu.Barrier(num_arrivals=walk.copies, num_barriers=walk.stages),
        "consumed": plgpu.Barrier(num_arrivals=n, num_barriers=walk.stages),
    }
    if walk.in_pieces:
        kinds |= {name: plgpu.SMEM((n, rows), jnp.float32) for name in ("maximum", "total")}
    if walk.interpret:
        kinds["weights"] = tiled((n, rows, KV_TILE), walk.dtype)
    return kinds


def tiled(shape: tuple[int, ...], dtype: Any) -> Any:
    """Shared memory in the widest swizzle that divides a row."""
    size = jnp.dtype(dtype).itemsize
    swizzle = next(s for s in (128, 64, 32) if shape[-1] * size % s == 0)
    tiling = plgpu.TilingTransform((GRANULE, swizzle // size))  # type: ignore[abstract]
    transforms = (tiling, plgpu.SwizzleTransform(swizzle))  # type: ignore[abstract]
    return plgpu.SMEM(shape, dtype, transforms=transforms)
