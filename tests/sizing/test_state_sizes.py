"""States of rows and their snapshots are counted, and do not grow with the context."""

from dataclasses import dataclass, replace
from typing import Any, override

import pytest

from jaxgen.cache.cache_format import CacheFormat, blocks_bytes
from jaxgen.core.config import EngineConfig, EngineOptions
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.errors import ConfigError, NoRoomError
from jaxgen.core.model_config import StateShape
from jaxgen.offload.planning.staging import staging_bytes
from jaxgen.sizing.allocation import allocation_of, cache_bytes, estimate_temporaries, sequence_bytes
from jaxgen.sizing.device_memory import GIB, DeviceMemory
from jaxgen.sizing.memory import resolve
from jaxgen.sizing.plan import PlanRequest, make_plan
from jaxgen.sizing.plan_changes import find_changes
from jaxgen.sizing.window_sizes import CACHED_SHARE
from tests.support.hub_configs import described

WEIGHTS = GIB
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid(DecoderConfig):
    """A model of which three layers of four have a state of a MiB, unless told otherwise, in place of K and V."""

    state_numbers: int = 2**18

    @property
    @override
    def states(self) -> tuple[StateShape, ...]:
        layers = tuple([layer for layer in range(self.num_layers) if layer % 4])
        return (StateShape("delta", layers, (self.state_numbers,), "float32"),)


LLAMA = described("Llama-3.1-8B")
FIELDS = {name: getattr(LLAMA, name) for name in DecoderConfig.__dataclass_fields__}
MODEL = Hybrid(**FIELDS)
SEQUENCE = 24 * MIB
"""The states of a sequence, in 24 of 32 layers."""
BLOCK = CacheFormat.of(LLAMA, 64).of_layer.block_bytes * 8


def planned(gib: float, *, platform: str = "gpu", model: Any = MODEL, **options: Any) -> EngineConfig:
    memory = DeviceMemory(platform, WEIGHTS + int(gib * GIB))
    return resolve(EngineOptions(**options), model, memory, token_budget=256, params_bytes=WEIGHTS)


def left(config: EngineConfig, gib: float) -> int:
    memory, temporaries = DeviceMemory("gpu", WEIGHTS + int(gib * GIB)), estimate_temporaries(MODEL, config.scheduler)
    found = allocation_of(MODEL, config, memory, params_bytes=WEIGHTS, temporary_bytes=temporaries)
    assert found.states == (config.scheduler.max_num_seqs + (config.cache.num_snapshots or 0)) * SEQUENCE
    return found.left(memory)


def test_states_take_what_blocks_do_not() -> None:
    config = planned(10, max_num_seqs=16)
    assert MODEL.state_bytes == SEQUENCE
    assert blocks_bytes(MODEL, config.cache) == config.cache.num_blocks * BLOCK
    assert 0 <= left(config, 10) < BLOCK
    snapshots = (config.cache.num_snapshots or 0) - 16
    room = left(config, 10) + config.cache.num_blocks * BLOCK + snapshots * SEQUENCE
    assert snapshots == int(CACHED_SHARE * room) // SEQUENCE


def test_there_are_no_more_snapshots_than_blocks_and_none_without_a_prefix_cache() -> None:
    config = planned(40, max_num_seqs=16, model=replace(MODEL, state_numbers=1))
    assert 0 <= (config.cache.num_snapshots or 0) - 16 - config.cache.num_blocks <= 1
    few = planned(40, max_num_seqs=16, max_model_len=128, model=replace(MODEL, state_numbers=1))
    assert few.cache.num_snapshots == 16 + 16 * 2, "no more than blocks are of use"
    asked: dict[str, Any] = {"max_num_seqs": 16, "num_blocks": 5, "model": replace(MODEL, state_numbers=1)}
    assert planned(40, **asked).cache.num_snapshots == 16 + 5
    with_host = planned(40, kv_offloading_size=7 * BLOCK / GIB, **asked)
    assert with_host.offload is not None
    host = planned(40, max_num_seqs=16, kv_offloading_size=1.0)
    memory = DeviceMemory("gpu", WEIGHTS + 40 * GIB)
    found = allocation_of(MODEL, host, memory, params_bytes=WEIGHTS, temporary_bytes=0)
    assert found.staging == staging_bytes(BLOCK) + 2 * SEQUENCE, "a snapshot each way"
    assert with_host.cache.num_snapshots == 16 + 5 + with_host.offload.host_blocks
    assert planned(10, max_num_seqs=16, prefix_caching=False).cache.num_snapshots == 0
    assert planned(10, model=LLAMA).cache.num_snapshots is None


def test_rows_that_nobody_asked_for_are_fewer_where_states_are_large() -> None:
    assert planned(100).scheduler.max_num_seqs == 128
    assert planned(100, model=replace(MODEL, state_numbers=2**20)).scheduler.max_num_seqs == 64


def test_states_that_do_not_fit_are_refused() -> None:
    with pytest.raises(NoRoomError, match=r"state of its rows \(9\.\d+ GiB\).*lower --token-budget or --max-num-seqs"):
        planned(4, max_num_seqs=200)
    request = PlanRequest(EngineOptions(max_num_seqs=200), MODEL, WEIGHTS, "gpu", 5 * GIB, None, 256)
    plan = make_plan(request)
    assert plan.allocation.states == (200 + plan.num_snapshots) * SEQUENCE
    assert (plan.num_snapshots, plan.left < 0) == (200, True)
    assert "--max-num-seqs 50" in find_changes(request, plan)


def test_states_stay_on_the_device_if_keys_and_values_do_not() -> None:
    config = planned(10, max_num_seqs=2, kv_residency="host", kv_offloading_size=400 * BLOCK / GIB)
    streaming = config.streaming
    assert streaming is not None
    assert (config.cache.num_blocks, streaming.keep_inputs) == (400, False)
    snapshots = (config.cache.num_snapshots or 0) - 2
    assert snapshots == int(CACHED_SHARE * 400 * BLOCK) // SEQUENCE > 0
    passing = 2 * streaming.num_open * BLOCK + 2 * 400 * BLOCK // 8
    assert cache_bytes(MODEL, config, DeviceMemory("gpu", 0)) == passing
    assert left(config, 10) > 0
    tight = planned(2, max_num_seqs=2, kv_residency="host", kv_offloading_size=8000 * BLOCK / GIB)
    assert 0 <= left(tight, 2) < BLOCK
    without = planned(10, prefix_caching=False, kv_residency="host", kv_offloading_size=40 * BLOCK / GIB)
    assert without.cache.num_snapshots == 0


def test_inputs_of_layers_with_a_state_are_not_kept() -> None:
    with pytest.raises(ConfigError, match=r"--kv-offload-inputs is for models .* have a state"):
        planned(40, kv_offloading_size=8.0, kv_offload_inputs=True)


def test_a_sequence_grows_only_in_its_layers_of_attention() -> None:
    config = planned(40, max_num_seqs=16, max_model_len=32768)
    sizes = [sequence_bytes(MODEL, config, tokens) for tokens in (64, 4096, 32768)]
    assert sizes == [SEQUENCE + BLOCK, SEQUENCE + 64 * BLOCK, SEQUENCE + 512 * BLOCK]
    plan = make_plan(PlanRequest(EngineOptions(max_num_seqs=16), MODEL, WEIGHTS, "gpu", 40 * GIB, None, 256))
    assert plan.allocation.states > 0
    assert plan.sequences[0] == (4096, SEQUENCE + 64 * BLOCK)


def test_a_cpu_takes_its_modest_share_with_snapshots() -> None:
    config = planned(20, platform="cpu", max_num_seqs=16)
    snapshots = (config.cache.num_snapshots or 0) - 16
    assert snapshots == GIB * 2 // 8 // SEQUENCE
    assert blocks_bytes(MODEL, config.cache) + snapshots * SEQUENCE <= 2 * GIB
