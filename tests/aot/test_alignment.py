"""No operand of a Pallas kernel is an offset into another array, which might not be aligned as Mosaic demands.

Whether XLA makes it one depends on sizes, above all on max_num_seqs, so the programs of a server are compiled for
several. Few layers, a small vocabulary and small products show as much of that as large ones.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from jaxgen.core.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxgen.kernels.choice import ampere, hopper
from jaxgen.kernels.kernels import Kernels
from jaxgen.layerwise.layer_pool import LayerPool
from jaxgen.layerwise.programs import width_programs
from jaxgen.runner.programs import step_program
from pallas_kernels.gpu.attention.ragged_paged_attention import ragged_paged_attention
from scripts.loads.large import LLAMA3_8B
from tests.aot.calls import of_ends, of_layer
from tests.aot.target import H200, STEP_DONATES, Executable, Target, compile_for

MODEL = replace(LLAMA3_8B, num_layers=3, vocab_size=1024, hidden_size=512, intermediate_size=1024)
BUDGET, NARROW = 256, 64


def kernels_of(target: Target) -> Kernels:
    return hopper(132) if target is H200 else ampere(108)


def config_of(max_num_seqs: int) -> EngineConfig:
    return EngineConfig(CacheConfig(64, 1024), SchedulerConfig(BUDGET, max_num_seqs, 8192), 0, 4)


def check(compiled: Executable, num_mosaic: int) -> None:
    assert compiled.num_mosaic == num_mosaic
    assert not compiled.fused_mosaic


@pytest.mark.parametrize(
    ("max_num_seqs", "width"),
    [(33, BUDGET), (256, BUDGET), (64, NARROW)],  # an odd number of rows, the widest, and the narrow program
)
def test_of_a_step(target: Target, max_num_seqs: int, width: int) -> None:
    kernels = kernels_of(target)
    step = step_program(MODEL, config_of(max_num_seqs), kernels, width)
    compiled = compile_for(target, step.function, step.shapes, STEP_DONATES, read=False)
    check(compiled, MODEL.num_layers * of_layer(MODEL, kernels) + of_ends(MODEL, kernels, heads=2))  # one of prompts


@pytest.mark.parametrize("max_num_seqs", [33, 256])
def test_of_a_layer_by_itself(target: Target, max_num_seqs: int) -> None:
    config, kernels = config_of(max_num_seqs), kernels_of(target)
    pool = jax.eval_shape(lambda: LayerPool.zeros(MODEL, config.cache, kernels, num_open=64, keep_inputs=False))
    _, (layer,), _ = width_programs(MODEL, config, kernels, BUDGET, pool)
    compiled = compile_for(target, layer.function, layer.shapes, layer.donated, read=False)
    check(compiled, of_layer(MODEL, kernels) + kernels.joins_sums)  # no norm follows that adds its last parts


def test_an_offset_is_seen(target: Target) -> None:
    """Tables cut from a larger array, as the lengths of contexts once were."""
    R, H, K, D = 64, 32, 8, 128
    shapes = (BUDGET, H, D), (1024, 1, 2, K, 64, D)
    q, cache = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    words = jax.ShapeDtypeStruct((5 + R * 128,), jnp.int32)
    starts, lens, scalar = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((R + 1,), (R,), ()))

    def attend(q: jax.Array, cache: jax.Array, words: jax.Array, *rows: jax.Array) -> jax.Array:
        tables = words[5:].reshape(R, 128)
        return ragged_paged_attention(
            q, cache, rows[-1], tables, *rows, scale=1.0, bulk=target is H200, wgmma=target is H200
        )

    compiled = compile_for(target, attend, (q, cache, words, starts, lens, scalar, scalar), read=False)
    assert compiled.fused_mosaic
