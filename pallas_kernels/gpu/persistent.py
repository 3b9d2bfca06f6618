"""A persistent grid: a fixed number of thread blocks (CTAs) that share a list of items of any length."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

Ref = Any
"""What a kernel sees of an array; Pallas exports no type for it."""
Interpret = plgpu.InterpretGPUParams | None
H200_MULTIPROCESSORS = 132
CTA = "cta"
"""The grid's axis."""
REGISTERS = (40, 232)
"""Registers of a thread: in the warpgroup that loads, and in the warpgroups that compute.

A CTA of three warpgroups is launched with 168 registers a thread: all that a multiprocessor has, rounded down to a
multiple of 8. Its warps share these 384 * 168 registers. 40 + 2 * 232 fits exactly, and so does 24 + 2 * 240. With
more, ``setmaxnreg.inc`` waits forever. tests/aot checks this for every kernel.
"""


class CtaItems:
    """The items of this CTA among ``count`` items: number i of them is item cta + i * num_ctas."""

    def __init__(self, count: Int[Array, ""], num_ctas: int):
        self._cta = lax.axis_index(CTA)
        self._stride = jnp.int32(num_ctas)
        self.mine = lax.div(jnp.maximum(count - self._cta, 0) + self._stride - 1, self._stride)

    def __getitem__(self, i: Int[Array, ""]) -> Int[Array, ""]:
        return self._cta + i * self._stride


def repeat(start: Int[Array, ""] | int, end: Int[Array, ""] | int, body: Callable[[jax.Array], None]) -> None:
    """``body(i)`` for i from ``start`` to ``end``."""
    lax.fori_loop(jnp.int32(start), jnp.int32(end), lambda i, _: body(i), None)


def copy(source: Ref, destination: Ref) -> None:
    """Copy within global memory through registers, on any GPU; a multiple of 128 elements."""
    destination[...] = plgpu.load(source, optimized=False)


def put(destination: Ref, value: Any) -> None:
    """Store registers in whatever way there is: jax 0.12 does that only where it is asked to, and may else look for a
    layout without end."""
    if hasattr(plgpu, "store"):
        plgpu.store(destination, value, optimized=False)
    else:
        destination[...] = value


def stream(
    items: CtaItems,
    source: Callable[[jax.Array], Ref],
    destination: Callable[[jax.Array], Ref],
    stages: Ref,
    loaded: Ref,
    *,
    rows: int,
) -> None:
    """Copy each item from ``source(item)`` to ``destination(item)`` in global memory by bulk copies (Hopper).

    ``stages`` is [num_stages, rows, ...] with at least the ``rows`` of an item, ``loaded`` has a barrier for each
    stage. All stages but the one that is being stored are being loaded.
    """
    num_stages, staged = stages.shape[0], pl.ds(0, rows)

    def load(i: Int[Array, ""]) -> None:
        stage = lax.rem(i, jnp.int32(num_stages))
        plgpu.copy_gmem_to_smem(source(items[i]), stages.at[stage, staged], loaded.at[stage])

    def store(i: Int[Array, ""]) -> None:
        stage = lax.rem(i, jnp.int32(num_stages))
        plgpu.barrier_wait(loaded.at[stage])
        plgpu.copy_smem_to_gmem(stages.at[stage, staged], destination(items[i]))
        plgpu.wait_smem_to_gmem(1, wait_read_only=True)
        # So the store before this one has left its stage.
        pl.when((i > 0) & (i - 1 + num_stages < items.mine))(lambda: load(i - 1 + num_stages))

    for i in range(num_stages):
        pl.when(i < items.mine)(partial(load, jnp.int32(i)))
    repeat(0, items.mine, store)
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
