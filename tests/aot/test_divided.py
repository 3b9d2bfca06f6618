"""The step of a model that several GPUs have a part of each, in one program of all: NVIDIA's library only moves
numbers."""

import re
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import topologies
from jax.experimental.mosaic.gpu.core import artificial_shared_memory_limit
from jax.sharding import Mesh

from jaxgen.core.division import Division
from jaxgen.models.rank_sum import RANKS
from jaxgen.runner.devices import Devices
from jaxgen.runner.separate_step import LAYERS, separate_programs
from scripts.loads.large import LLAMA3_8B
from tests.aot import cases
from tests.aot.target import Target
from tests.aot.test_step import CONFIG, taken

GPUS = 4
NUM_LAYERS = 1


@pytest.mark.only(cases.HOPPER)
def test_a_layer_crosses_devices_twice_and_no_library_adds(target: Target) -> None:
    model = Division(LLAMA3_8B.of_layers(NUM_LAYERS), GPUS).part
    kernels = taken(model)
    program = separate_programs(model, CONFIG, kernels, CONFIG.scheduler.token_budget)[LAYERS]
    topology = topologies.get_topology_desc(platform="cuda", target_config=target.text, topology=f"1x1x{GPUS}")
    devices = Devices(Mesh(np.asarray(topology.devices), (RANKS,)))
    with artificial_shared_memory_limit(target.device.shared_memory_per_block_optin):
        function, shapes = devices.spread(program.function, program.shapes)
        traced = jax.jit(function, donate_argnums=program.donated).trace(*shapes)
        compiled: Any = traced.lower(lowering_platforms=("cuda",)).compile(dict(kernels.compiler_options))
    hlo = compiled.as_text()
    for exchange in ("all-gather", "all-to-all"):
        assert len(re.findall(rf" {exchange}(?:-start)?\(", hlo)) == 2 * NUM_LAYERS, exchange
    assert not re.search("all-reduce|reduce-scatter", hlo)
    assert 'custom_call_target="mosaic_gpu' in hlo
    _, cache, rows, *_ = program.shapes
    of_one = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((cache, rows)))
    assert compiled.memory_analysis().alias_size_in_bytes == of_one
