"""Every "auto" is decided from model and memory, and what cannot fit is refused with the value that would."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxgen.cache.cache_format import CacheFormat
from jaxgen.core.config import CacheConfig, EngineConfig, EngineOptions, OffloadConfig, StreamConfig
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.errors import ConfigError
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.tier_address import DirectoryAddress
from jaxgen.models.kv_cache import init_cache
from jaxgen.offload.planning.staging import staging_bytes
from jaxgen.sizing.allocation import CPU_SLACK, LEAST_SLACK, ROW_STATES_AT_ONCE, cache_bytes, row_state_bytes
from jaxgen.sizing.device_memory import GIB, DeviceMemory
from jaxgen.sizing.layerwise import STREAMED_ROWS
from jaxgen.sizing.memory import resolve
from jaxgen.sizing.step_bounds import scheduler_config
from tests.support.engines import LLAMA
from tests.support.hybrid import HYBRID

CPU = DeviceMemory("cpu", 8 * GIB)
GPU = DeviceMemory("gpu", 8 * GIB)
BLOCK = CacheFormat.of(LLAMA, 64).block_bytes
MHA = replace(LLAMA, num_kv_heads=LLAMA.num_heads)


def plan(
    memory: DeviceMemory, *, model: DecoderConfig = LLAMA, params: int = GIB, temporaries: int = 0, **options: Any
) -> EngineConfig:
    """Return the plan for ``memory`` beside rows and slack."""
    wanted = EngineOptions(**options)
    return resolve(
        *(wanted, model, beside_the_rest(memory, model, wanted)),
        token_budget=64,
        params_bytes=params,
        temporary_bytes=temporaries,
    )


def beside_the_rest(memory: DeviceMemory, model: ModelConfig, options: EngineOptions) -> DeviceMemory:
    """Return ``memory`` with room for the state of the rows and the slack."""
    try:
        scheduler = scheduler_config(options, model, 64, is_cpu=memory.is_cpu, room=None)
    except ConfigError:
        return memory
    if options.kv_residency == "host" and options.max_num_seqs is None:
        scheduler = replace(scheduler, max_num_seqs=STREAMED_ROWS)
    state = row_state_bytes(model, scheduler, options.block_size or 64, options.max_logit_bias)
    free = memory.free_bytes + ROW_STATES_AT_ONCE * state
    slack = min(CPU_SLACK, 7 * free) if memory.is_cpu else LEAST_SLACK
    return replace(memory, free_bytes=free + slack)


def test_cpu_takes_what_its_rows_can_use() -> None:
    config = plan(CPU)
    assert config.scheduler.max_model_len == LLAMA.max_position
    assert config.cache.num_blocks == config.scheduler.max_num_seqs * LLAMA.max_position // 64


def test_cpu_takes_half_of_the_free_memory_at_most() -> None:
    memory, many = DeviceMemory("cpu", CPU_SLACK + GIB), EngineOptions(max_num_seqs=10_000, token_budget=10_000)
    config = resolve(many, LLAMA, memory, token_budget=64, params_bytes=0, temporary_bytes=0)
    assert config.cache.num_blocks == GIB // 2 // BLOCK


def test_little_memory_is_still_used() -> None:
    few = DeviceMemory("cpu", CPU_SLACK)
    many = EngineOptions(max_num_seqs=1000, token_budget=1000)
    config = resolve(many, LLAMA, few, token_budget=64, params_bytes=0, temporary_bytes=0)
    assert config.cache.num_blocks == CPU_SLACK // 16 // BLOCK


def test_cpu_takes_two_gib_at_most() -> None:
    config = plan(DeviceMemory("cpu", 100 * GIB), max_num_seqs=10**6, token_budget=10**6)
    assert config.cache.num_blocks == 2 * GIB // BLOCK


def test_accelerator_takes_what_weights_and_temporaries_leave() -> None:
    config = plan(DeviceMemory("gpu", GIB + 70 * BLOCK), temporaries=8 * BLOCK)
    assert config.cache.num_blocks == 62


def test_context_shrinks_to_what_fits_unless_asked_for() -> None:
    memory = DeviceMemory("gpu", GIB + 3 * BLOCK)
    assert plan(memory).scheduler.max_model_len == 3 * 64
    with pytest.raises(ConfigError, match=r"--max-model-len 1024.*--num-blocks 16.*--max-model-len 192 or less"):
        plan(memory, max_model_len=1024)


def test_explicit_blocks_are_honoured_or_refused() -> None:
    assert plan(GPU, num_blocks=20).cache.num_blocks == 20
    with pytest.raises(ConfigError, match=r"--num-blocks 4 does not fit in .*: --num-blocks 3 would"):
        plan(DeviceMemory("gpu", GIB + 3 * BLOCK), num_blocks=4)


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="--gpu-memory-utilization"):
        plan(DeviceMemory("gpu", GIB), params=2 * GIB)
    with pytest.raises(ConfigError, match="free some memory"):
        plan(DeviceMemory("cpu", GIB), params=2 * GIB)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_model_len": 4096}, "--max-model-len 1024 or less"),
        ({"max_num_seqs": 100, "token_budget": 10}, "--max-num-seqs 100.*--token-budget 10"),
        ({"block_size": 0}, "--block-size"),
        ({"num_blocks": -1}, "--num-blocks"),
        ({"max_model_len": 1}, "--max-model-len must be 2 or more, not 1"),
        ({"num_blocks": 1, "block_size": 1}, "but --num-blocks 1 of --block-size 1 leave it 1: use a larger one"),
        ({"gpu_memory_utilization": 1.5}, "--gpu-memory-utilization"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plan(CPU, **options)


def test_a_small_budget_lowers_the_default_number_of_rows() -> None:
    assert plan(CPU, token_budget=4).scheduler.max_num_seqs == 4
    assert plan(CPU, max_num_seqs=200).scheduler.token_budget == 200


def test_prefix_caching_is_on_unless_switched_off() -> None:
    assert plan(CPU).scheduler.prefix_caching
    assert not plan(CPU, prefix_caching=False).scheduler.prefix_caching


def test_the_decided_budget_is_used_when_none_is_asked_for() -> None:
    assert plan(CPU).scheduler.token_budget == 64
    assert plan(CPU, token_budget=24).scheduler.token_budget == 24


def test_a_narrow_program_is_of_half_the_budget_at_most() -> None:
    assert plan(CPU, token_budget=24, max_num_seqs=12).narrow_width == 12
    assert plan(CPU, token_budget=24, max_num_seqs=13).narrow_width is None
    assert plan(CPU, token_budget=24, max_num_seqs=12, single_shape=True).narrow_width is None


def test_on_a_gpu_the_narrow_program_has_64_tokens_at_most() -> None:
    assert [plan(GPU, token_budget=256, max_num_seqs=rows).narrow_width for rows in (256, 64, 32)] == [64, 64, 32]


def test_only_a_gpu_s_steps_run_ahead() -> None:
    assert plan(GPU).run_ahead
    assert not plan(CPU).run_ahead


def test_on_a_cpu_rows_are_a_quarter_of_the_budget_and_the_narrow_program_has_fewer() -> None:
    wide = plan(CPU, token_budget=256)
    assert (wide.scheduler.max_num_seqs, wide.narrow_width) == (64, 16)
    assert plan(CPU, token_budget=64).scheduler.max_num_seqs == 16


def test_host_memory_is_that_of_whole_blocks() -> None:
    config = plan(GPU, kv_offloading_size=10.5 * BLOCK / GIB, kv_offload_policy="transfer")
    assert config.offload == OffloadConfig(10, "transfer")
    assert plan(GPU).offload is None


def test_quantised_blocks_are_more() -> None:
    wide = plan(GPU, kv_offloading_size=1.0).offload
    narrow = plan(GPU, kv_offloading_size=1.0, kv_host_dtype="int8").offload
    assert wide is not None
    assert narrow is not None
    assert narrow.host_blocks == int(GIB / CacheFormat.of(LLAMA, 64).host_block_bytes("int8")) > 2 * wide.host_blocks


def test_a_cache_of_codes_has_nearly_twice_the_tokens_in_the_same_memory() -> None:
    wide = replace(LLAMA, dtype="bfloat16", head_dim=128)
    narrow = replace(wide, kv_dtype="int8")
    assert 128 * CacheFormat.of(narrow, 8).block_bytes == 132 * CacheFormat.of(wide, 8).block_bytes // 2
    cache = jax.eval_shape(lambda: init_cache(narrow, CacheConfig(8, 5)))
    assert cache.data.size * cache.data.dtype.itemsize == 5 * CacheFormat.of(narrow, 8).block_bytes
    memory = DeviceMemory("gpu", GIB + 100 * CacheFormat.of(wide, 64).block_bytes)
    assert plan(memory, model=wide).cache.num_blocks == 100
    assert plan(memory, model=narrow).cache.num_blocks == 193
    both = [plan(GPU, model=model, kv_offloading_size=1.0).offload for model in (wide, narrow)]
    assert 1.9 < both[1].host_blocks / both[0].host_blocks < 2.0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kv_cache_dtype": "int4"}, "--kv-cache-dtype must be one of auto, int8, fp8, .*, not int4"),
        ({"kv_cache_dtype": "fp8_e4m3", "kv_host_dtype": "int8"}, "--kv-host-dtype int8 .* --kv-cache-dtype fp8_e4m3"),
    ],
)
def test_formats_of_the_cache_that_cannot_be_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plan(GPU, kv_offloading_size=1.0, **options)


def test_staging_takes_memory_of_the_device_and_of_a_cpu_the_host_pool_too() -> None:
    staging = staging_bytes(BLOCK)
    memory = GIB + staging + 100 * BLOCK
    assert plan(DeviceMemory("gpu", memory), kv_offloading_size=30 * BLOCK / GIB).cache.num_blocks == 100
    asked: dict[str, Any] = {"kv_offloading_size": 30 * BLOCK / GIB, "num_blocks": 70}
    assert plan(DeviceMemory("cpu", memory), **asked).cache.num_blocks == 70
    with pytest.raises(ConfigError, match="--num-blocks 70 would"):
        plan(DeviceMemory("cpu", memory), **(asked | {"num_blocks": 71}))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kv_offloading_size": -1.0}, "--kv-offloading-size must be 0"),
        ({"kv_offloading_size": float("nan")}, "--kv-offloading-size must be 0"),
        ({"kv_offloading_size": 1e-9}, "does not hold one block"),
        ({"kv_offloading_size": 1.0, "prefix_caching": False}, "needs the prefix cache"),
    ],
)
def test_host_memory_that_makes_no_sense_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plan(GPU, **options)


DEEP = replace(LLAMA, num_layers=32, num_kv_heads=4)
"""Its layer inputs are half the bytes of K and V."""
DEEP_BLOCK = CacheFormat.of(DEEP, 64).block_bytes
OPEN = 1 + 1 + 2 * 2
"""For a budget of 64 tokens in blocks of 64, and 2 rows."""


def deep(
    platform: str, blocks: float, *, model: DecoderConfig = DEEP, host: float = 0.0, **options: Any
) -> EngineConfig:
    """With device memory for so many blocks, and as much host memory as ``host`` says, in blocks too."""
    wanted = {"kv_offloading_size": host * DEEP_BLOCK / GIB, "max_num_seqs": 2, **options}
    memory = DeviceMemory(platform, int(blocks * DEEP_BLOCK))
    return plan(memory, model=model, params=0, **wanted)


def test_a_streamed_cache_takes_a_layer_of_each_block_and_the_open_ones() -> None:
    """A tenth of the device memory that all blocks would take."""
    config = deep("gpu", 2 * OPEN + 20 / 32 * 2, kv_residency="host", host=20, kv_offload_policy="transfer")
    assert config.cache.num_blocks == 20
    assert config.streaming == StreamConfig(OPEN, 4, keep_inputs=False, policy="transfer")
    assert config.offload is None
    assert cache_bytes(DEEP, config, GPU) == (2 * OPEN + 20 / 16) * DEEP_BLOCK
    long: dict[str, Any] = {
        "model": replace(DEEP, max_position=2**20),
        "block_size": 16,
        "kv_offload_policy": "transfer",
    }
    config = deep("gpu", 16, kv_residency="host", host=200, **long)
    assert config.cache.num_slots == 10 * 16 * 64
    assert config.scheduler.max_model_len == config.cache.num_slots


def test_inputs_are_kept_on_the_host_where_that_pays() -> None:
    config = deep("gpu", 1000, kv_residency="host", host=15)
    assert config.streaming == StreamConfig(OPEN, 3, keep_inputs=True, policy="plan")
    assert config.cache.num_blocks == 10, "each half as large again"
    config = deep("gpu", 1000, model=replace(DEEP, num_kv_heads=2), kv_residency="host", host=15)
    assert config.streaming is not None
    assert not config.streaming.keep_inputs
    assert config.cache.num_blocks == 30


def test_host_memory_of_a_cpu_is_the_devices_own() -> None:
    asked: dict[str, Any] = {"kv_residency": "host", "kv_offload_policy": "transfer", "host": 20, "num_blocks": 20}
    assert deep("cpu", 2 * OPEN + 20 / 16 + 20, **asked).cache.num_blocks == 20
    with pytest.raises(ConfigError, match=r"--num-blocks 20 does not fit in .*: --num-blocks 18 would"):
        deep("cpu", 2 * OPEN + 19 / 16 + 19 - 0.1, **asked)


def test_a_streamed_cache_has_few_rows_unless_asked_for() -> None:
    assert deep("gpu", 1000, kv_residency="host", host=200, max_num_seqs=None).scheduler.max_num_seqs == 16
    assert deep("gpu", 1000, max_num_seqs=None).scheduler.max_num_seqs == 64


def test_auto_takes_the_host_only_where_it_holds_more() -> None:
    auto: dict[str, Any] = {"kv_residency": "auto"}
    enough = staging_bytes(DEEP_BLOCK) / DEEP_BLOCK + 16
    assert deep("gpu", enough, **auto, host=20).streaming is None, "a sequence of 1024 tokens has 16 blocks"
    assert deep("gpu", enough, **auto, host=20).offload is not None
    assert deep("gpu", 15, **auto).streaming is None, "there is no host memory"
    assert deep("gpu", 15, **auto).scheduler.max_model_len == 15 * 64
    assert deep("gpu", 30, **auto, host=30).streaming is not None
    assert deep("gpu", enough - 1, **auto, host=3).streaming is None, "the host holds less"
    with pytest.raises(ConfigError, match="--max-model-len 1024"):
        deep("gpu", 15, **auto, max_model_len=1024)
    assert deep("gpu", 30, **auto, host=30, max_model_len=1024).streaming is not None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "--kv-residency host needs --kv-offloading-size"),
        (
            {"host": 10.0, "kv_offload_policy": "recompute", "model": HYBRID},
            "layers of this one have a state of each sequence in their place: use plan or transfer",
        ),
        ({"host": -1.0}, "--kv-residency host needs --kv-offloading-size"),
        ({"host": 10.0, "kv_host_dtype": "int8"}, "--kv-host-dtype int8 .* use --kv-host-dtype auto"),
        ({"host": 10.0, "kv_offload_inputs": True}, "--kv-offload-inputs is for a cache on the device"),
        ({"host": 10.0, "kv_offload_policy": "recompute", "model": replace(DEEP, num_kv_heads=2)}, "plan or transfer"),
        (
            {"host": 10.0, "kv_offload_policy": "recompute", "model": replace(DEEP, kv_dtype="fp8")},
            "not smaller than K and V: use plan or transfer",
        ),
        ({"host": 12.0, "max_model_len": 1024}, "--kv-offloading-size 0.024 or more, or --max-model-len 512 or less"),
        ({"host": 12.0, "num_blocks": 9}, "--num-blocks 9: use --kv-offloading-size 0.014 or more"),
        ({"host": 1.0}, "does not hold one block: use --kv-offloading-size 0.002 or more"),
        ({"host": 40.0, "max_model_len": 1024, "max_num_seqs": 8}, "lower --token-budget or --max-num-seqs"),
        ({"host": 40.0, "max_model_len": 1024, "max_num_seqs": 3}, "use --max-model-len 960 or less"),
    ],
)
def test_a_streamed_cache_that_cannot_be_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        deep("gpu", 24.95, kv_residency="host", **options)


def test_layer_inputs_count_on_the_device_in_staging_and_on_the_host() -> None:
    """With as many KV heads as heads they are half of K and V."""
    one = (block := CacheFormat.of(MHA, 64, keep_inputs=True)).block_bytes
    assert one == block.host_block_bytes("auto") == 3 * 64 * block.input_bytes == 3 * 2 * 64 * 64 * 4
    memory, asked = GIB + staging_bytes(one) + 100 * one, {"kv_offload_inputs": True}
    config = plan(DeviceMemory("gpu", memory), model=MHA, kv_offloading_size=30.5 * one / GIB, **asked)
    assert (config.cache.num_blocks, config.cache.keep_inputs) == (100, True)
    assert config.offload == OffloadConfig(30)
    on_cpu: dict[str, Any] = {"kv_offloading_size": 30 * one / GIB, **asked}
    assert plan(DeviceMemory("cpu", memory), model=MHA, num_blocks=70, **on_cpu).cache.num_blocks == 70
    with pytest.raises(ConfigError, match="--num-blocks 70 would"):
        plan(DeviceMemory("cpu", memory), model=MHA, num_blocks=71, **on_cpu)
    assert not plan(GPU, model=MHA, kv_offloading_size=1.0).cache.keep_inputs


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        (MHA, {}, "needs host memory.*--kv-offloading-size"),
        (MHA, {"kv_offloading_size": 1.0, "kv_host_dtype": "int8"}, "--kv-host-dtype int8 quantises"),
        (LLAMA, {"kv_offloading_size": 1.0}, "layer inputs of a token have 512 bytes, its K and V 512"),
        (
            replace(MHA, kv_dtype="int8"),
            {"kv_offloading_size": 1.0},
            "layer inputs of a token have 512 bytes, its K and V 320",
        ),
    ],
)
def test_layer_inputs_that_make_no_sense_are_refused(model: DecoderConfig, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plan(GPU, model=model, kv_offload_inputs=True, **options)


def test_more_host_memory_than_there_is_blames_its_own_flag() -> None:
    with pytest.raises(ConfigError) as refused:
        plan(CPU, kv_offloading_size=1e5)
    said = str(refused.value)
    assert said.startswith("--kv-offloading-size 100000 GiB does not fit in the 8.38 GiB of cpu memory")
    would = float(said.split("--kv-offloading-size ")[2].split()[0])
    assert 6 < would < 7
    assert plan(CPU, kv_offloading_size=would).offload is not None


def test_on_an_accelerator_it_is_the_hosts_memory_that_counts() -> None:
    memory = replace(GPU, host_bytes=64 * GIB)
    assert plan(memory, kv_offloading_size=64).offload is not None
    with pytest.raises(ConfigError, match=r"--kv-offloading-size 65 GiB does not fit in the 64\.00 GiB of the host"):
        plan(memory, kv_offloading_size=65)


def test_weights_that_leave_no_room_do_not_blame_host_memory() -> None:
    with pytest.raises(ConfigError, match="leave no room for a KV cache"):
        plan(CPU, params=9 * GIB, kv_offloading_size=1)


def test_a_kv_tier_has_a_little_host_memory_before_it() -> None:
    found = plan(GPU, kv_tier_dir="tier", kv_tier_size=2.0).offload
    assert found == OffloadConfig(GIB // BLOCK, tier=DirectoryAddress(Path("tier")), tier_bytes=2 * GIB)
    on_cpu = plan(DeviceMemory("cpu", 4 * GIB), kv_tier_dir="tier").offload
    assert on_cpu is not None
    assert on_cpu.host_blocks == GIB // 2 // BLOCK
    asked = plan(GPU, kv_tier_dir="tier", kv_offloading_size=10.5 * BLOCK / GIB).offload
    assert asked is not None
    assert asked.host_blocks == 10


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kv_tier_size": 0.0}, "--kv-tier-size must be more than 0 GiB"),
        ({"kv_tier_size": float("nan")}, "--kv-tier-size must be more than 0 GiB"),
        ({"kv_tier_size": 1e-9}, "--kv-tier-size 1e-09 GiB does not hold two blocks"),
        ({"prefix_caching": False}, "--kv-tier-dir needs the prefix cache"),
        ({"kv_tier": "redis://host"}, "--kv-tier and --kv-tier-dir both"),
        ({"kv_residency": "host", "kv_offloading_size": 1.0}, "with --kv-residency host drop the flag"),
    ],
)
def test_a_kv_tier_that_cannot_work_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan(GPU, kv_tier_dir="tier", **options)
