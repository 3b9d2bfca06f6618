"""A default server's step fits in the memory that is planned for it, beside all that the engine keeps.

The programs have true widths, the whole vocabulary and as many blocks as are planned, but few layers: the weights
and the cache of the others are arithmetic. Temporaries do not depend on depth.
"""

import logging
from dataclasses import dataclass

import jax
import pytest

from jaxgen.cache.cache_format import blocks_bytes
from jaxgen.core.config import EngineOptions
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.operations import ATTENTION
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels.choice import made_for
from jaxgen.runner.separate_step import LAYERS as LAYERS_PROGRAM
from jaxgen.runner.separate_step import separate_programs
from jaxgen.sizing.allocation import allocation_of
from jaxgen.sizing.device_memory import DeviceMemory
from jaxgen.sizing.memory import refit, resolve
from jaxgen.sizing.token_budget import default_budget
from jaxgen.weights.encodings.weight_formats import parameter_bytes
from tests.aot import cases
from tests.aot.target import Target, compile_program
from tests.support.hub_configs import described

logger = logging.getLogger(__name__)

MIB = 2**20


@dataclass(frozen=True)
class Server:
    """A model on a GPU. ``mib``: all of its memory, as the driver says it."""

    model: str
    kind: str
    mib: int


LEAST_LAYERS = 2
MOST_INDICES = 64
"""Most bytes of indices of stacked weights, which are not counted."""
SHARE = EngineOptions().gpu_memory_utilization
MOST_LEFT = 0.05
"""Share of the pool that may be left unused: slack, and what is planned twice."""


@pytest.mark.parametrize(
    "server",
    [
        pytest.param(Server("Llama-3.2-1B", "NVIDIA L4", 24_564), marks=pytest.mark.only(cases.AMPERE)),
        pytest.param(Server("Llama-3.1-8B", "NVIDIA H100 80GB HBM3", 81_559), marks=pytest.mark.only(cases.HOPPER)),
        pytest.param(Server("gemma-3-12b-it", "NVIDIA H200", 143_771), marks=pytest.mark.only(cases.HOPPER)),
    ],
    ids=lambda server: server.model,
)
def test_a_default_server_fits(target: Target, server: Server) -> None:
    model = described(server.model)
    major, minor = map(int, target.device.compute_capability.split("."))
    cores = target.device.num_cores
    assert cores is not None
    device = DeviceInfo("gpu", server.kind, cores, compute_capability=(major, minor))
    memory = DeviceMemory("gpu", int(server.mib * MIB * SHARE))
    options, weights = EngineOptions(), parameter_bytes(model)
    config = resolve(options, model, memory, token_budget=default_budget(device).tokens, params_bytes=weights)
    kernels = made_for(device, model, config.cache.block_size)
    assert ATTENTION in kernels.own, kernels.reason
    few = few_layers(model)
    programs = separate_programs(few, config, kernels, config.scheduler.token_budget)
    found_of = {name: compile_program(target, one, kernels) for name, one in programs.items()}
    compiled, args = found_of[LAYERS_PROGRAM], programs[LAYERS_PROGRAM].shapes
    most = max(one.temporaries for one in found_of.values())
    step_bytes = most + 2 * sum(one.outputs for one in found_of.values())
    found = allocation_of(model, config, memory, params_bytes=weights, temporary_bytes=step_bytes)
    kept = weights + found.cache + rows_and_words(args)
    needed = kept + step_bytes
    logger.info(
        "%s, %s: %d tokens, %d rows, %d blocks: %d MiB needed of %d, temporaries %d MiB",
        *(server.model, server.kind, config.scheduler.token_budget, config.scheduler.max_num_seqs),
        *(config.cache.num_blocks, needed // MIB, memory.free_bytes // MIB, most // MIB),
    )
    of_others = found.cache - blocks_bytes(few, config.cache) + weights - parameter_bytes(few)
    assert 0 <= compiled.arguments - (kept - of_others) <= MOST_INDICES
    assert (1 - MOST_LEFT) * memory.free_bytes < needed <= memory.free_bytes - found.slack // 2
    sizes = {"params_bytes": weights, "temporary_bytes": step_bytes}
    assert refit(options, model, config, memory, **sizes) is config, "it is compiled once"


def rows_and_words(args: tuple[object, ...]) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(args[2:]))


def few_layers(model: DecoderConfig) -> DecoderConfig:
    """Return the model with as few layers as have all of its kinds of cache."""
    counts = range(LEAST_LAYERS, model.num_layers + 1)
    return next(few for few in map(model.of_layers, counts) if len(few.cache_kinds) == len(model.cache_kinds))
