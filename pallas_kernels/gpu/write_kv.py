"""Write new keys and values into their slots of the blocked KV cache, by bulk copies or through registers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.gpu.persistent import CTA, H200_MULTIPROCESSORS, CtaItems, Interpret, Ref, copy, repeat

STAGES = 8
"""Tokens that a CTA has in flight."""


def write_kv(
    cache: Float[Array, "N L 2 K B D"],
    layer: Int[Array, ""],
    k: Float[Array, "T K D"],
    v: Float[Array, "T K D"],
    slots: Int[Array, "T"],
    *,
    num_ctas: int = H200_MULTIPROCESSORS,
    bulk: bool = True,
    interpret: Interpret = None,
) -> Float[Array, "N L 2 K B D"]:
    """Return the cache with token t's K and V of ``layer`` at ``slots[t]`` = block * B + offset; see write_kv_ref.

    A slot of N * B or more writes nothing. The result is undefined if slots are negative or not distinct. K and V are
    cast to the cache's dtype by XLA.

    ``bulk``: use four bulk copies a token, which need Hopper. They copy its K and its V [K, D] into shared memory, and
    from there one row in each head of its block. D * itemsize must be a multiple of 16 bytes, K and D at most 256. If
    not ``bulk``, K and V go through registers, on any GPU; then K * D must be a multiple of 128.

    Bytes moved: 2 * T * K * D * itemsize read and as many written; no FLOPs.
    """
    N, _, _, K, B, D = cache.shape

    def body(cache_ref: Ref, layer_ref: Ref, k_ref: Ref, v_ref: Ref, slots_ref: Ref, *staging: Ref) -> None:
        layer = layer_ref[0]

        def write(token: Int[Array, ""], store: Callable[[int, Ref], None]) -> None:
            slot = slots_ref[token]

            @pl.when(slot < N * B)
            def _() -> None:
                block, offset = lax.div(slot, jnp.int32(B)), lax.rem(slot, jnp.int32(B))
                for which in range(2):
                    store(which, cache_ref.at[block, layer, which, :, pl.ds(offset, 1)])

        tokens, sources = CtaItems(jnp.int32(len(slots)), num_ctas), (k_ref, v_ref)
        if staging:
            _write_in_bulk(tokens, sources, write, *staging)
        else:
            _write_through_registers(tokens, sources, write)

    staging: Any = [plgpu.SMEM((STAGES, 2, K, 1, D), cache.dtype), plgpu.Barrier(num_arrivals=2, num_barriers=STAGES)]
    ref = jax.new_ref(cache)
    rows = (x.astype(cache.dtype).reshape(-1, K, 1, D) for x in (k, v))
    plgpu.kernel(
        body,
        out_type=(),
        scratch_types=staging if bulk else (),
        grid=(num_ctas,),
        grid_names=(CTA,),
        compiler_params=plgpu.CompilerParams(),
        interpret=interpret,
        kernel_name="write_kv",
    )(ref, layer.reshape(1), *rows, slots)
    return jax.freeze(ref)


Write = Callable[[jax.Array, Callable[[int, Ref], None]], None]
"""(token, store): unless the token is padding, store(0, where its K goes) and store(1, where its V goes)."""


def _write_through_registers(tokens: CtaItems, sources: tuple[Ref, Ref], write: Write) -> None:
    def one(i: Int[Array, ""]) -> None:
        write(tokens[i], lambda which, place: copy(sources[which].at[tokens[i]], place))

    repeat(0, tokens.mine, one)


def _write_in_bulk(tokens: CtaItems, sources: tuple[Ref, Ref], write: Write, stages: Ref, loaded: Ref) -> None:
    """Write in rounds, because copies that padding leaves out cannot be waited for one by one."""

    def load(i: Int[Array, ""], stage: int) -> None:
        for which, source in enumerate(sources):
            plgpu.copy_gmem_to_smem(source.at[tokens[i]], stages.at[stage, which], loaded.at[stage])

    def store(i: Int[Array, ""], stage: int) -> None:
        plgpu.barrier_wait(loaded.at[stage])
        write(tokens[i], lambda which, place: plgpu.copy_smem_to_gmem(stages.at[stage, which], place))

    def round_(first: Int[Array, ""]) -> None:
        for work in (load, store):
            for stage in range(STAGES):
                i = first * STAGES + stage
                pl.when(i < tokens.mine)(partial(work, i, stage))
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)

    repeat(0, lax.div(tokens.mine + STAGES - 1, jnp.int32(STAGES)), round_)
