"""A plan has the numbers of the configuration that serving would choose, and changes that do what they say."""

import re
from dataclasses import replace
from typing import Any

import pytest

from jaxgen.cache.cache_format import CacheFormat
from jaxgen.core.config import EngineOptions
from jaxgen.core.decoder_config import DecoderConfig, llama_config
from jaxgen.core.decoder_parts import RopeConfig
from jaxgen.core.errors import ConfigError
from jaxgen.offload.planning.staging import staging_bytes
from jaxgen.sizing.allocation import CPU_SLACK, cache_bytes
from jaxgen.sizing.device_memory import GIB
from jaxgen.sizing.plan import Plan, PlanRequest, make_plan
from jaxgen.sizing.plan_changes import USEFUL_CONTEXT, find_changes
from tests.support.hub_configs import described

MODEL = llama_config(
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=11008,
    num_layers=32,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    max_position=16384,
    dtype="bfloat16",
    norm_eps=1e-5,
    rope=RopeConfig(),
)
"""The sizes of Llama 2 7B, with a longer context: half a MiB of K and V for each token."""
WEIGHTS = 13_476_839_424
BLOCK = CacheFormat.of(MODEL, 64).block_bytes


def request(
    gib: float, *, platform: str = "gpu", model: DecoderConfig = MODEL, weights: int = WEIGHTS, **options: Any
) -> PlanRequest:
    return PlanRequest(EngineOptions(**options), model, weights, platform, int(gib * GIB), None, 512)


def both(request: PlanRequest) -> tuple[Plan, list[str]]:
    plan = make_plan(request)
    return plan, find_changes(request, plan)


def test_a_plan_adds_up() -> None:
    plan, changes = both(request(80))
    assert plan.memory.free_bytes == int(72 * GIB)
    taken = plan.allocation
    assert taken.temporaries == 4 * (512 * (4 * 4096 + 3 * 11008 + 4096) + 256 * 5 * 32000)
    assert taken.slack == plan.memory.free_bytes // 100
    assert plan.config is not None
    assert plan.allocation.cache == plan.config.cache.num_blocks * 2 * 32 * 32 * 128 * 2 * 64
    beside_cache = WEIGHTS + taken.temporaries + taken.rows + taken.slack
    assert plan.left == plan.memory.free_bytes - beside_cache - taken.cache
    assert 0 <= plan.left < BLOCK, "there is no room for another block"
    assert plan.scheduler.max_model_len == 16384
    assert plan.longest_at_once == plan.config.cache.num_slots // 16384 == 7
    assert (plan.scheduler.max_num_seqs, plan.host, plan.allocation.staging, changes) == (256, 0, 0, [])


def test_a_cpu_may_keep_codes() -> None:
    """Where the cache of numbers does not fit, as a change that alone gives the context."""
    small = request(18, platform="cpu", num_blocks=16384 // 64)
    _, changes = both(small)
    assert "--kv-cache-dtype int8" in changes
    assert not any("kv-cache" in change for change in both(request(18, num_blocks=16384 // 64))[1]), (
        "GPUs are slow at it"
    )


def test_rows_bound_the_sequences_at_once() -> None:
    assert make_plan(request(80, max_num_seqs=3, num_blocks=1500)).longest_at_once == 3
    assert make_plan(request(80, max_num_seqs=9, num_blocks=1500)).longest_at_once == 5


def test_host_memory_and_what_it_takes_of_the_device() -> None:
    plan = make_plan(request(80, kv_offloading_size=4.0, kv_host_dtype="int8"))
    assert plan.allocation.staging == staging_bytes(BLOCK)
    one = CacheFormat.of(MODEL, 64).host_block_bytes("int8")
    assert plan.host == int(4 * GIB / one) * one
    assert 0 <= plan.left < BLOCK
    on_cpu = make_plan(request(64, platform="cpu", kv_offloading_size=4.0, num_blocks=100))
    taken = on_cpu.allocation
    total = WEIGHTS + taken.temporaries + taken.rows + 100 * BLOCK + taken.staging + on_cpu.host
    assert on_cpu.left == 64 * GIB - total - CPU_SLACK


@pytest.mark.parametrize(("platform", "policy"), [("gpu", "transfer"), ("cpu", "transfer"), ("cpu", "plan")])
def test_a_streamed_cache(platform: str, policy: str) -> None:
    plan = make_plan(
        request(48, platform=platform, kv_residency="host", kv_offloading_size=10.0, kv_offload_policy=policy)
    )
    assert plan.config is not None
    assert plan.config.streaming is not None
    kept = 1.5 if plan.config.streaming.keep_inputs else 1
    assert plan.host == plan.config.cache.num_blocks * BLOCK * kept <= 10 * GIB
    assert plan.allocation.cache == cache_bytes(MODEL, plan.config, plan.memory)
    taken = plan.allocation
    beside_cache = WEIGHTS + taken.temporaries + taken.rows + taken.slack
    assert plan.left == plan.memory.free_bytes - beside_cache - taken.cache >= 0


def applied(request: PlanRequest, change: str) -> PlanRequest:
    """The request with a change as its words say it."""
    if found := re.search(r"(\d+) GiB", change):
        return replace(request, total_bytes=int(found[1]) * GIB)
    words = change.removesuffix(" or less").split()
    for flag, value in zip(words[::2], words[1::2], strict=True):
        name = flag.removeprefix("--").replace("-", "_")
        if name == "dtype":
            request = replace(request, model=replace(request.model, dtype="bfloat16"), weights=request.weights // 2)
        else:
            kind = {"gpu_memory_utilization": float, "kv_offloading_size": float, "kv_residency": str}.get(name, int)
            request = request.changed(**{name: kind(value)})
    return request


def goal_of(request: PlanRequest, plan: Plan) -> int:
    longest = request.model.max_position
    return request.options.max_model_len or (longest if plan.config else min(longest, USEFUL_CONTEXT))


WIDE = replace(MODEL, dtype="float32")
SHORT = replace(MODEL, max_position=1024)
GEMMA = described("gemma-3-12b-it")
CASES: list[tuple[PlanRequest, list[str]]] = [
    (request(20), ["--kv-residency", "a device with"]),
    (request(20, max_model_len=16384), ["--max-model-len", "--kv-residency", "a device with"]),
    (request(14.8, model=SHORT), ["--gpu-memory-utilization", "a device with"]),
    (request(14.8, model=SHORT, token_budget=2048, max_num_seqs=1024), ["--token-budget", "a device with"]),
    (request(20, model=WIDE, weights=2 * WEIGHTS), ["--dtype bfloat16", "a device with"]),
    (request(8), ["a device with"]),
    (request(64, platform="cpu"), ["--num-blocks 256"]),
    (request(8, platform="cpu"), ["GiB of free memory"]),
    (request(80, num_blocks=4, max_model_len=1024), ["--max-model-len 256"]),
]


@pytest.mark.parametrize(("request_", "expected"), CASES)
def test_each_change_alone_is_enough(request_: PlanRequest, expected: list[str]) -> None:
    plan, changes = both(request_)
    for words in expected:
        assert any(words in change for change in changes), (words, changes)
    goal = goal_of(request_, plan)
    for change in changes:
        found = make_plan(applied(request_, change)).config
        assert found is not None, change
        shorter = "--max-model-len" in change
        assert found.scheduler.max_model_len >= (1 if shorter else goal), change


def test_layers_with_a_window_do_not_grow_with_the_context() -> None:
    """Eight layers of Gemma 3 12B keep the whole context, 40 have a window of 1,024 tokens."""
    plan = make_plan(request(80, model=GEMMA, max_num_seqs=16, max_model_len=65536))
    token = 2 * 8 * 256 * 2
    assert [tokens for tokens, _ in plan.sequences] == [4096, 32768, 65536]
    assert [size for _, size in plan.sequences] == [
        token * (8 * tokens + 40 * (1024 + 64)) for tokens, _ in plan.sequences
    ]
    assert [part.kind.name for part in plan.kinds] == ["full", "window 1024"]
    assert sum(part.num_bytes for part in plan.kinds) == plan.allocation.cache
    assert plan.why_whole == ""
    whole = make_plan(request(80, model=GEMMA, max_num_seqs=16, max_model_len=65536, kv_events_config="{}"))
    assert [size for _, size in whole.sequences] == [token * 48 * tokens for tokens, _ in whole.sequences]
    assert whole.why_whole == "--kv-events-config needs it"
    assert plan.longest_at_once > 3 * whole.longest_at_once


def test_the_least_memory_is_the_least() -> None:
    """Of all whole numbers of GiB, tried one by one."""
    for more in range(6):
        one = request(4, weights=WEIGHTS + more * 3 * GIB // 2)
        enough = [gib for gib in range(4, 48) if fits(replace(one, total_bytes=gib * GIB))]
        (memory,) = find_changes(one, make_plan(one))
        assert memory == f"a device with {enough[0]} GiB"


def fits(request: PlanRequest) -> bool:
    config = make_plan(request).config
    return config is not None and config.scheduler.max_model_len >= USEFUL_CONTEXT


def test_what_does_not_fit_has_a_reason_and_no_cache() -> None:
    plan, _ = both(request(8))
    assert plan.config is None
    assert "weights (12.55 GiB)" in plan.problem
    taken = plan.allocation
    assert plan.left == int(7.2 * GIB) - WEIGHTS - taken.temporaries - taken.rows - taken.slack < 0
    assert (taken.cache, plan.longest_at_once) == (0, 0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_model_len": 10**6}, "--max-model-len 1000000 is over the 16384 positions"),
        ({"token_budget": 8, "max_num_seqs": 9}, "--max-num-seqs 9"),
        ({"kv_offload_inputs": True}, "--kv-offload-inputs needs host memory"),
        ({"block_size": 0}, "--block-size must be 1 or more"),
    ],
)
def test_options_that_no_memory_would_help_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_plan(request(8, **options))
