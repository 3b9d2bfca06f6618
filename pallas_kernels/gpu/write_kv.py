"""Write new keys and values into their slots of the blocked KV cache, by bulk copies or through registers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Num

from pallas_kernels.gpu import shared_memory as memory
from pallas_kernels.gpu.persistent import CTA, H200_MULTIPROCESSORS, CtaItems, Interpret, Ref, copy, repeat
from pallas_kernels.kv_codes import has_codes
from pallas_kernels.write_kv import write_kv_apart

_WARPGROUP = 128
"""Threads: registers hold a multiple of as many numbers."""
_MAX_BOX = 256
"""Most rows of a bulk copy, and most elements of a row."""
STAGES = 8
"""Most tokens that a CTA has in flight."""


def supports(
    *, kv_heads: int, head_dim: int, dtype: str, bulk: bool = True, shared_memory: int = memory.HOPPER
) -> str | None:
    """Return why the kernel cannot write a model's keys and values, or None if it can."""
    row_bytes = head_dim * jnp.dtype(dtype).itemsize
    if not bulk:
        trouble = kv_heads * head_dim % _WARPGROUP != 0
        return f"{kv_heads} kv heads of {head_dim} are not a multiple of {_WARPGROUP} numbers" if trouble else None
    if max(kv_heads, head_dim) > _MAX_BOX:
        return f"{kv_heads} kv heads of {head_dim}: one of the two is more than {_MAX_BOX}"
    if row_bytes % 16:
        return f"a head of {head_dim} numbers of {dtype} takes {row_bytes} bytes, not a multiple of 16"
    if not num_stages(kv_heads, row_bytes, shared_memory):
        return f"a token of {kv_heads} kv heads of {head_dim} takes more than {shared_memory} bytes of shared memory"
    return None


def num_stages(kv_heads: int, row_bytes: int, shared_memory: int) -> int:
    """Return the tokens that a CTA has in flight: STAGES, or as many as fit in its shared memory."""
    of_token = 2 * memory.aligned_rows(kv_heads, row_bytes) * row_bytes
    fit = (n for n in range(STAGES, 0, -1) if memory.taken([n * of_token], barriers=n) <= shared_memory)
    return next(fit, 0)


def write_kv(
    cache: Num[Array, "N L 2 K B W"],
    layer: Int[Array, ""],
    k: Float[Array, "T K D"],
    v: Float[Array, "T K D"],
    slots: Int[Array, "T"],
    *,
    num_ctas: int = H200_MULTIPROCESSORS,
    bulk: bool = True,
    shared_memory: int = memory.HOPPER,
    interpret: Interpret = None,
) -> Num[Array, "N L 2 K B W"]:
    """Return the cache with token t's K and V of ``layer`` at ``slots[t]`` = block * B + offset; see write_kv_ref.

    A slot of N * B or more writes nothing. The result is undefined if slots are negative or not distinct. K and V are
    cast to the cache's dtype by XLA.

    A cache of codes, with scales ``kv_codes.apart``, is written by XLA.

    ``bulk``: use four bulk copies a token, which need Hopper. They copy its K and its V [K, D] into shared memory, and
    from there one row in each head of its block. If not ``bulk``, K and V go through registers, on any GPU.
    ``shared_memory``: bytes that a CTA may have. NotImplementedError where ``supports`` says why.

    Bytes moved: 2 * T * K * D * itemsize read and as many written; no FLOPs.
    """
    if has_codes(cache.dtype):
        return write_kv_apart(cache, layer, k, v, slots)
    N, _, _, K, B, D = cache.shape
    shape: Any = {"kv_heads": K, "head_dim": D, "dtype": cache.dtype.name}
    if reason := supports(**shape, bulk=bulk, shared_memory=shared_memory):
        raise NotImplementedError(reason)

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
        if bulk:
            _write_in_bulk(tokens, sources, write, *staging)
        else:
            _write_through_registers(tokens, sources, write)

    ref = jax.new_ref(cache)
    rows = (x.astype(cache.dtype).reshape(-1, K, 1, D) for x in (k, v))
    plgpu.kernel(
        body,
        out_type=(),
        scratch_types=_scratch(K, D, cache.dtype, shared_memory) if bulk else (),
        grid=(num_ctas,),
        grid_names=(CTA,),
        compiler_params=plgpu.CompilerParams(),
        interpret=interpret,
        kernel_name="write_kv",
    )(ref, layer.reshape(1), *rows, slots)
    return jax.freeze(ref)


def _scratch(kv_heads: int, head_dim: int, dtype: Any, shared_memory: int) -> list[Any]:
    """Return the stages of K and V [heads, 1, D], each padded with heads so that the next one is aligned."""
    row_bytes = head_dim * dtype.itemsize
    stages = num_stages(kv_heads, row_bytes, shared_memory)
    return [
        plgpu.SMEM((stages, 2, memory.aligned_rows(kv_heads, row_bytes), 1, head_dim), dtype),
        plgpu.Barrier(num_arrivals=2, num_barriers=stages),
    ]


Write = Callable[[jax.Array, Callable[[int, Ref], None]], None]
"""(token, store): unless the token is padding, store(0, where its K goes) and store(1, where its V goes)."""


def _write_through_registers(tokens: CtaItems, sources: tuple[Ref, Ref], write: Write) -> None:
    def write_token(i: Int[Array, ""]) -> None:
        write(tokens[i], lambda which, place: copy(sources[which].at[tokens[i]], place))

    repeat(0, tokens.mine, write_token)


def _write_in_bulk(tokens: CtaItems, sources: tuple[Ref, Ref], write: Write, stages: Ref, loaded: Ref) -> None:
    """Write in rounds, because copies that padding leaves out cannot be waited for one by one."""
    num_stages, heads = stages.shape[0], pl.ds(0, sources[0].shape[1])

    def load(i: Int[Array, ""], stage: int) -> None:
        for which, source in enumerate(sources):
            plgpu.copy_gmem_to_smem(source.at[tokens[i]], stages.at[stage, which, heads], loaded.at[stage])

    def store(i: Int[Array, ""], stage: int) -> None:
        plgpu.barrier_wait(loaded.at[stage])
        write(tokens[i], lambda which, place: plgpu.copy_smem_to_gmem(stages.at[stage, which, heads], place))

    def round_(first: Int[Array, ""]) -> None:
        for work in (load, store):
            for stage in range(num_stages):
                i = first * num_stages + stage
                pl.when(i < tokens.mine)(partial(work, i, stage))
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)

    repeat(0, lax.div(tokens.mine + num_stages - 1, jnp.int32(num_stages)), round_)
