"""A plan counts every array that programs keep. If a device turns out to be too full, it is planned once more."""

from typing import Any

import jax
import pytest

from jaxgen.cache.cache_format import CacheFormat
from jaxgen.core.config import CacheConfig, EngineConfig, EngineOptions, SchedulerConfig
from jaxgen.core.errors import NoRoomError
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels.choice import made_for
from jaxgen.models.kv_cache import init_cache
from jaxgen.models.placement import abstract_packed_params
from jaxgen.runner.row_state import init_rows
from jaxgen.sizing.allocation import (
    CPU_SLACK,
    LEAST_SLACK,
    ROW_STATES_AT_ONCE,
    allocation_of,
    estimate_temporaries,
    row_state_bytes,
)
from jaxgen.sizing.device_memory import GIB, DeviceMemory
from jaxgen.sizing.memory import refit, resolve, with_fewer_blocks
from jaxgen.sizing.step_bounds import LEAST_ROWS
from jaxgen.sizing.token_budget import GPU_ROWS
from jaxgen.weights.encodings.weight_formats import parameter_bytes
from tests.support.hub_configs import HUB, described

H200 = DeviceInfo("gpu", "NVIDIA H200", 132, compute_capability=(9, 0))
MODEL = described("Llama-3.1-8B")
WEIGHTS = parameter_bytes(MODEL)
BLOCK = CacheFormat.of(MODEL, 64).block_bytes
MEMORY = DeviceMemory("gpu", WEIGHTS + 3 * GIB)
"""Fewer blocks fit in it than its rows could use."""
HOST: dict[str, Any] = {"kv_offloading_size": 60.0, "kv_residency": "host"}


def size_of(arrays: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(arrays))


@pytest.mark.parametrize("name", sorted(HUB)[::3])
def test_every_array_that_an_engine_keeps_is_counted(name: str) -> None:
    model = described(name)
    kernels = made_for(H200, model, 64)
    windows = tuple([kind.window or 0 for kind in model.cache_kinds[1:]])
    cache = CacheConfig(64, 256, window_blocks=(99,) * len(windows), windows=windows)
    config = EngineConfig(cache, SchedulerConfig(256, 33, min(5000, model.max_position)), 0, 300)
    found = allocation_of(model, config, MEMORY, params_bytes=parameter_bytes(model), temporary_bytes=0)
    packed = [array for array in jax.tree.leaves(abstract_packed_params(model, kernels)) if array.ndim]  # no indices
    assert found.weights == size_of(packed)
    assert found.cache == size_of(jax.eval_shape(lambda: init_cache(model, config.cache, kernels)))
    assert found.rows == ROW_STATES_AT_ONCE * size_of(jax.eval_shape(lambda: init_rows(config, model.vocab_size)))


def planned(memory: DeviceMemory = MEMORY, **options: Any) -> EngineConfig:
    return resolve(EngineOptions(**options), MODEL, memory, token_budget=256, params_bytes=WEIGHTS)


def estimate(config: EngineConfig) -> int:
    return estimate_temporaries(MODEL, config.scheduler)


def left(config: EngineConfig, temporary_bytes: int | None = None) -> int:
    temporaries = estimate(config) if temporary_bytes is None else temporary_bytes
    return allocation_of(MODEL, config, MEMORY, params_bytes=WEIGHTS, temporary_bytes=temporaries).left(MEMORY)


@pytest.mark.parametrize("options", [{}, {"kv_offloading_size": 4.0}, HOST], ids=["device", "offload", "host"])
def test_a_plan_fills_the_memory_and_leaves_the_slack(options: dict[str, Any]) -> None:
    assert 0 <= left(planned(**options)) < BLOCK


def test_slack_is_a_share_of_a_large_pool_and_a_cpus_is_the_process() -> None:
    def slack(memory: DeviceMemory) -> int:
        return allocation_of(MODEL, planned(), memory, params_bytes=0, temporary_bytes=0).slack

    assert slack(DeviceMemory("gpu", 8 * GIB)) == LEAST_SLACK
    assert slack(DeviceMemory("gpu", 100 * GIB)) == GIB
    assert slack(DeviceMemory("cpu", 100 * GIB)) == CPU_SLACK
    assert slack(DeviceMemory("cpu", CPU_SLACK)) == CPU_SLACK * 7 // 8


def again(config: EngineConfig, temporary_bytes: int, **options: Any) -> EngineConfig:
    return refit(EngineOptions(**options), MODEL, config, MEMORY, params_bytes=WEIGHTS, temporary_bytes=temporary_bytes)


def test_temporaries_may_take_half_of_the_slack() -> None:
    config = planned(max_model_len=8192)
    most = estimate(config) + left(config) + LEAST_SLACK // 2
    assert again(config, most) is config
    fewer = again(config, most + 1)
    assert fewer.cache.num_blocks < config.cache.num_blocks
    assert fewer.scheduler == config.scheduler
    assert 0 <= left(fewer, most + 1) < BLOCK


def test_blocks_that_were_asked_for_are_not_made_fewer() -> None:
    blocks = planned().cache.num_blocks
    config = planned(num_blocks=blocks)
    with pytest.raises(NoRoomError, match=rf"--num-blocks {blocks} does not fit in .*: --num-blocks \d+ would"):
        again(config, estimate(config) + GIB, num_blocks=blocks)


@pytest.mark.parametrize("options", [{"max_model_len": 8192}, HOST], ids=["device", "host"])
def test_a_second_plan_leaves_free_once_more_what_a_step_needs(options: dict[str, Any]) -> None:
    config = planned(**options)
    less, fewer = with_fewer_blocks(EngineOptions(**options), MODEL, config, MEMORY, params_bytes=WEIGHTS)
    state = row_state_bytes(MODEL, config.scheduler, 64, config.max_logit_bias)
    kept_free = estimate(config) + ROW_STATES_AT_ONCE * state + LEAST_SLACK
    assert MEMORY.free_bytes - less.free_bytes == kept_free
    assert fewer.cache.num_blocks < config.cache.num_blocks
    assert (fewer.scheduler, fewer.streaming is None) == (config.scheduler, config.streaming is None)
    assert kept_free <= left(fewer) < kept_free + BLOCK


def test_a_second_plan_keeps_the_rows() -> None:
    """Although the memory that it leaves would have fewer by default: kernels are proven for those of the first."""
    memory, options = DeviceMemory("gpu", WEIGHTS + 4 * GIB), EngineOptions(max_model_len=1024)
    config = planned(memory, max_model_len=1024)
    less, fewer = with_fewer_blocks(options, MODEL, config, memory, params_bytes=WEIGHTS)
    assert planned(less, max_model_len=1024).scheduler.max_num_seqs < config.scheduler.max_num_seqs
    assert fewer.scheduler == config.scheduler


def test_a_context_that_does_not_fit_a_second_plan_is_refused() -> None:
    config = planned()
    assert config.scheduler.max_model_len == config.cache.num_slots, "as long as fits"
    with pytest.raises(NoRoomError, match=r"--max-model-len \d+ or less"):
        with_fewer_blocks(EngineOptions(), MODEL, config, MEMORY, params_bytes=WEIGHTS)


def rows_beside(room: int, **options: Any) -> int:
    """Return the rows that a model of a large vocabulary gets where so many bytes are left beside its weights."""
    model, weights = described("gemma-3-1b-it"), 2 * GIB
    memory = DeviceMemory("gpu", weights + room)
    config = resolve(EngineOptions(**options), model, memory, token_budget=512, params_bytes=weights)
    return config.scheduler.max_num_seqs


def test_rows_of_a_large_vocabulary_are_fewer_where_memory_is_short() -> None:
    per_row = 262_144 * (5 * 4 + 2 * (4 + 1 + 1 / 8))
    assert rows_beside(int(8 * GPU_ROWS * per_row) + 1) == GPU_ROWS
    assert rows_beside(int(8 * GPU_ROWS * per_row) - 1) == GPU_ROWS // 2
    assert rows_beside(GIB) == LEAST_ROWS
    assert rows_beside(4 * GIB, max_num_seqs=200) == 200
