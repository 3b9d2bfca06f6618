"""Write new keys and values into their slots of the blocked KV cache, by bulk copies."""

from functools import partial

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.gpu.persistent import CTA, H200_MULTIPROCESSORS, Interpret, Items, Ref, repeat

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
    interpret: Interpret = None,
) -> Float[Array, "N L 2 K B D"]:
    """Return the cache with token t's K and V of ``layer`` at ``slots[t]`` = block * B + offset; see write_kv_ref.

    A slot of N * B or more writes nothing. Undefined where slots are negative or not distinct. K and V are cast to the
    cache's dtype by XLA. D * itemsize must be a multiple of 16 bytes, K and D at most 256.

    Four bulk copies a token: its K and its V [K, D] into shared memory, and from there one row in each head of its
    block. Bytes moved: 2 * T * K * D * itemsize read and as many written; no FLOPs.
    """
    N, _, _, K, B, D = cache.shape
    T = len(slots)

    def body(cache_ref: Ref, layer_ref: Ref, k_ref: Ref, v_ref: Ref, slots_ref: Ref, stages: Ref, loaded: Ref) -> None:
        tokens = Items(jnp.int32(T), num_ctas)

        def load(i: Int[Array, ""], stage: int) -> None:
            for which, source in enumerate((k_ref, v_ref)):
                plgpu.copy_gmem_to_smem(source.at[tokens[i]], stages.at[stage, which], loaded.at[stage])

        def store(i: Int[Array, ""], stage: int) -> None:
            plgpu.barrier_wait(loaded.at[stage])
            slot = slots_ref[tokens[i]]

            @pl.when(slot < N * B)
            def _() -> None:
                block, offset = lax.div(slot, jnp.int32(B)), lax.rem(slot, jnp.int32(B))
                for which in range(2):
                    place = cache_ref.at[block, layer_ref[0], which, :, pl.ds(offset, 1)]
                    plgpu.copy_smem_to_gmem(stages.at[stage, which], place)

        def round_(first: Int[Array, ""]) -> None:
            for work in (load, store):
                for stage in range(STAGES):
                    i = first * STAGES + stage
                    pl.when(i < tokens.mine)(partial(work, i, stage))
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)

        repeat(0, lax.div(tokens.mine + STAGES - 1, jnp.int32(STAGES)), round_)

    ref = jax.new_ref(cache)
    rows = (x.astype(cache.dtype).reshape(T, K, 1, D) for x in (k, v))
    plgpu.kernel(
        body,
        out_type=(),
        scratch_types=[
            plgpu.SMEM((STAGES, 2, K, 1, D), cache.dtype),
            plgpu.Barrier(num_arrivals=2, num_barriers=STAGES),
        ],
        grid=(num_ctas,),
        grid_names=(CTA,),
        compiler_params=plgpu.CompilerParams(),
        interpret=interpret,
        kernel_name="write_kv",
    )(ref, layer.reshape(1), *rows, slots)
    return jax.freeze(ref)
