"""What to compile ahead of time of the attention kernels: calls in models' shapes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.gpu.attention.ragged_paged_attention import ragged_paged_attention

MAX_BLOCKS = 512
"""Entries of a row's block table: 32k tokens in blocks of 64."""


@dataclass(frozen=True)
class Shape:
    """T tokens and R rows, and H, K, D of a model; a cache of N blocks of B tokens in L layers."""

    T: int
    R: int
    H: int
    K: int
    D: int
    L: int
    N: int
    B: int = 64
    dtype: str = "bfloat16"
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False


SHAPES = {
    "llama_3_8b": Shape(T=256, R=256, H=32, K=8, D=128, L=32, N=2048),
    "opt_6.7b": Shape(T=256, R=256, H=32, K=32, D=128, L=32, N=512),
    "qwen_0.5b": Shape(T=256, R=256, H=14, K=2, D=64, L=24, N=2048),
    "opt_2.7b": Shape(T=512, R=256, H=32, K=32, D=80, L=32, N=512),
    "phi_3_mini": Shape(T=2048, R=256, H=32, K=32, D=96, L=32, N=512, window=2047),
    "gpt_oss_20b": Shape(T=256, R=256, H=64, K=8, D=64, L=24, N=2048, window=128, sinks=True),
    "gemma_2_9b": Shape(T=256, R=256, H=16, K=8, D=256, L=42, N=512, window=4096, soft_cap=50.0),
    "soft_cap_f16_b16": Shape(T=64, R=16, H=8, K=4, D=128, L=2, N=256, B=16, dtype="float16", soft_cap=50.0),
    "blocks_of_128": Shape(T=2048, R=64, H=32, K=8, D=128, L=2, N=256, B=128),
}


def program(
    shape: Shape, *, bulk: bool = True, wgmma: bool = True
) -> tuple[Callable[..., jax.Array], tuple[jax.ShapeDtypeStruct, ...]]:
    """A function and the shapes of its arguments, of which the first is the cache."""

    def array(dtype: Any, *dimensions: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dimensions, dtype)

    def call(cache: jax.Array, q: jax.Array, sinks: jax.Array, *integers: jax.Array) -> jax.Array:
        return ragged_paged_attention(
            q,
            cache,
            *integers,
            scale=shape.D**-0.5,
            window=shape.window,
            soft_cap=shape.soft_cap,
            sinks=sinks if shape.sinks else None,
            bulk=bulk,
            wgmma=wgmma,
        )

    return call, (
        array(shape.dtype, shape.N, shape.L, 2, shape.K, shape.B, shape.D),
        array(shape.dtype, shape.T, shape.H, shape.D),
        array(jnp.float32, shape.H),
        array(jnp.int32),
        array(jnp.int32, shape.R, MAX_BLOCKS),
        array(jnp.int32, shape.R + 1),
        array(jnp.int32, shape.R),
        array(jnp.int32),
        array(jnp.int32),
    )
