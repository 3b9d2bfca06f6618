"""One set of limits, and few models, for all tests of caches in host memory: each program is compiled once."""

from dataclasses import replace
from functools import cache

import numpy as np

from jaxgen.core.config import EngineConfig, OffloadPolicy, StreamConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.engine.start.runners import compile_for
from jaxgen.kernels.choice import REFERENCE
from jaxgen.kernels.kernels import Kernels
from jaxgen.layerwise.model_runner import CompiledLayers
from jaxgen.layerwise.planning.layer_store import LayerStore
from tests.models.test_layers_apart import OPT
from tests.support.engines import LLAMA, engine_config

BLOCK = 8
CONFIG = engine_config(token_budget=20, max_num_seqs=3, max_model_len=96, block_size=BLOCK, num_blocks=14)
"""So few blocks that sequences are preempted."""
NUM_OPEN = LayerStore.most_open(20, 3, BLOCK) + 2
GROUP = 3
SMALL = replace(LLAMA, hidden_size=32)
"""Its layer inputs are half the bytes of K and V."""
OPT_350M = replace(OPT, placement="post_sum", final_norm=False, embed_size=16)
CODES = replace(SMALL, kv_dtype="int8")
"""Its blocks are other numbers than its layer inputs."""
WINDOWED = replace(SMALL, dtype="bfloat16", windows=(2 * BLOCK,) * SMALL.num_layers)
"""For the native kernels."""
RNG = np.random.default_rng(5)
PROMPTS = [RNG.integers(3, 300, size=n).tolist() for n in (1, 7, 40, 24, 33)]


def streamed(policy: OffloadPolicy, narrow_width: int | None = None) -> EngineConfig:
    streaming = StreamConfig(NUM_OPEN, GROUP, policy != "transfer", policy)
    return replace(CONFIG, streaming=streaming, narrow_width=narrow_width)


def compiled_layers(
    model: ModelConfig, policy: OffloadPolicy = "plan", kernels: Kernels = REFERENCE, narrow_width: int | None = None
) -> CompiledLayers:
    """Those of "plan" are those of "recompute"; "transfer" keeps no inputs."""
    return _compiled_layers(model, streamed("transfer" if policy == "transfer" else "plan", narrow_width), kernels)


@cache
def _compiled_layers(model: ModelConfig, config: EngineConfig, kernels: Kernels) -> CompiledLayers:
    compiled = compile_for(model, config, kernels)
    assert isinstance(compiled, CompiledLayers)
    return compiled
