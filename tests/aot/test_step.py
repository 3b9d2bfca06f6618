"""The whole step of a Llama-3-8B shape compiles for the GPU, with the cache in place."""

import jax

from jaxgen.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxgen.kernels import REFERENCE
from jaxgen.programs import STEP_DONATES, step_program
from scripts.device_check.shapes import LLAMA3_8B
from tests.aot.target import Target, compile_for

CONFIG = EngineConfig(CacheConfig(64, 1024), SchedulerConfig(256, 64, 8192), 0, 4)
"""8 GiB of cache, 256 tokens a step."""


def test_step(target: Target) -> None:
    step, args = step_program(LLAMA3_8B, CONFIG, REFERENCE, CONFIG.scheduler.token_budget)
    compiled = compile_for(target, step, args, STEP_DONATES)
    _, cache, rows, _ = args
    donated = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((cache, rows)))
    assert compiled.aliased == donated
    assert not compiled.copies(cache.data)
    assert compiled.temporaries < cache.data.size * cache.data.dtype.itemsize / 8
