"""Windows get blocks of their own where the memory then holds more, with pools that never run out."""

import random
from dataclasses import replace
from math import gcd
from typing import Any

import pytest

from jaxgen.cache.cache_format import CacheFormat, blocks_bytes, kind_blocks, kind_formats, place_bytes
from jaxgen.cache.window_manager import blocks_for
from jaxgen.core.config import EngineConfig, EngineOptions, SchedulerConfig
from jaxgen.core.errors import ConfigError, NoRoomError
from jaxgen.core.layer_kind import HeadShape
from jaxgen.offload.planning.staging import staging_bytes
from jaxgen.sizing.allocation import allocation_of, estimate_temporaries
from jaxgen.sizing.device_memory import GIB, DeviceMemory
from jaxgen.sizing.memory import resolve
from jaxgen.sizing.window_sizes import CACHED_SHARE, kinds_title, why_whole
from tests.support.engines import LLAMA
from tests.support.hub_configs import described

GEMMA = described("gemma-3-12b-it")
FULL, WINDOW = 8, 40
"""Its layers that keep the whole context, and those that look back 1,024 tokens."""
LAYER = CacheFormat.of(GEMMA, 64).of_layer.block_bytes
WEIGHTS = 8 * GIB
ROW = 1024 // 64 + 2
"""Blocks of a window of 1,024 tokens for each row."""


def planned(gib: float, *, platform: str = "gpu", model: Any = GEMMA, **options: Any) -> EngineConfig:
    """Return the configuration for the given memory beside weights of 8 GiB."""
    memory = DeviceMemory(platform, WEIGHTS + int(gib * GIB))
    return resolve(EngineOptions(**options), model, memory, token_budget=512, params_bytes=WEIGHTS)


def left(config: EngineConfig, gib: float) -> int:
    memory, temporaries = DeviceMemory("gpu", WEIGHTS + int(gib * GIB)), estimate_temporaries(GEMMA, config.scheduler)
    found = allocation_of(GEMMA, config, memory, params_bytes=WEIGHTS, temporary_bytes=temporaries)
    return found.left(memory)


@pytest.mark.parametrize("window", [1, 2, 5, 8, 9, 16, 17, 40])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_pool_holds_what_any_chunks_of_its_rows_need(window: int, rows: int) -> None:
    """Drawn; each row has the blocks of its chunk and of the tokens before it that the chunk's first token sees."""
    draw, block_size, budget = random.Random(window), 8, 24
    pool = blocks_for(rows, window, block_size, SchedulerConfig(budget, rows, 1024))
    most = 0
    for _ in range(2000):
        cuts = sorted(draw.choices(range(budget - rows + 1), k=rows - 1))
        lengths = [1 + end - start for start, end in zip([0, *cuts], [*cuts, budget - rows], strict=True)]
        starts = [draw.randrange(100, 200) for _ in range(rows)]
        ends = [start + length for start, length in zip(starts, lengths, strict=True)]
        firsts = [(start - (window - 1)) // block_size for start in starts]
        most = max(most, sum(-(-end // block_size) - first for first, end in zip(firsts, ends, strict=True)))
    assert most <= pool <= most + 2 * rows, "and has little more"


def test_memory_holds_more_sequences_and_all_of_it_is_counted() -> None:
    config = planned(40, max_num_seqs=16, max_model_len=32768)
    whole = planned(40, max_num_seqs=16, max_model_len=32768, model=replace(GEMMA, windows=()))
    (least,) = (16 * ROW + 8,)
    (windows,) = config.cache.window_blocks
    assert config.cache.num_blocks > 4 * whole.cache.num_blocks
    assert least < windows < whole.cache.num_blocks
    assert blocks_bytes(GEMMA, config.cache) == (config.cache.num_blocks * FULL + windows * WINDOW) * LAYER
    assert 0 <= left(config, 40) < WINDOW * LAYER, "there is no room for another block"
    beside = (config.cache.num_blocks * FULL + (windows - least) * WINDOW) * LAYER
    assert (windows - least) * WINDOW * LAYER == pytest.approx(CACHED_SHARE * beside, abs=WINDOW * LAYER)


def test_memory_that_no_sequence_needs_is_for_prefixes() -> None:
    config = planned(40, max_num_seqs=4, max_model_len=65536)
    assert config.cache.num_blocks == 4 * 1024, "as much as its rows can have"
    assert config.cache.window_blocks[0] > 2 * (4 * ROW + 8)
    assert 0 <= left(config, 40) < WINDOW * LAYER
    longer = planned(100, max_num_seqs=4, max_model_len=65536, num_blocks=4 * 1024)
    assert longer.cache.window_blocks < config.cache.window_blocks, "who asks for blocks asks for little memory"


def test_without_a_prefix_cache_windows_have_the_least() -> None:
    config = planned(40, max_num_seqs=16, max_model_len=32768, prefix_caching=False)
    assert config.cache.window_blocks == (16 * ROW + 8,)


def test_each_kind_has_the_blocks_of_its_layers() -> None:
    config = planned(40, max_num_seqs=16)
    full, windows = kind_blocks(GEMMA, config.cache)
    assert (len(full.kind.layers), len(windows.kind.layers)) == (FULL, WINDOW)
    assert (full.num_blocks, windows.num_blocks) == (config.cache.num_blocks, *config.cache.window_blocks)
    assert (full.block_bytes, windows.block_bytes) == (FULL * LAYER, WINDOW * LAYER)


def test_blocks_that_are_asked_for_keep_the_whole_context_and_the_limit_is_exact() -> None:
    config = planned(10, max_num_seqs=4, num_blocks=1500)
    assert config.cache.num_blocks == 1500
    assert config.scheduler.max_model_len == 1500 * 64
    assert 4 * ROW + 8 < config.cache.window_blocks[0] < 1500
    with pytest.raises(NoRoomError, match=r"--num-blocks 9999 does not fit in .*: --num-blocks \d+ would") as refused:
        planned(10, max_num_seqs=4, num_blocks=9999)
    would = int(str(refused.value).split("--num-blocks ")[2].split()[0])
    config = planned(10, max_num_seqs=4, num_blocks=would)
    assert config.cache.window_blocks == (ROW + 8,), "those of one sequence are left"
    assert 0 <= left(config, 10) < FULL * LAYER
    with pytest.raises(NoRoomError):
        planned(10, max_num_seqs=4, num_blocks=would + 1)


def test_two_windows_get_as_many_further_blocks() -> None:
    windows = tuple([None if layer % 4 == 0 else 4096 if layer % 4 == 1 else 512 for layer in range(48)])
    model = replace(GEMMA, windows=windows)
    config = planned(40, max_num_seqs=8, model=model)
    wide, narrow = config.cache.window_blocks
    assert wide - narrow == 8 * (4096 - 512) // 64
    assert narrow > 8 * (512 // 64 + 2) + 8
    few = planned(40, max_num_seqs=8, model=model, num_blocks=300)
    least = [2 * (window // 64 + 2) + 8 for window in (4096, 512)]
    assert all(found >= of_two for found, of_two in zip(few.cache.window_blocks, least, strict=True)), "300 hold two"


TWO_SHAPES = replace(
    GEMMA,
    layer_kinds=tuple(["attention" if window else "global" for window in GEMMA.windows]),
    global_heads=HeadShape(kv_heads=2, head_dim=512, keys_are_values=True),
)
"""Half as many bytes of a token in layers that keep the whole context."""


@pytest.mark.parametrize(
    "options", [{}, {"max_model_len": 1024}, {"num_blocks": 26}, {"max_num_seqs": 64, "max_model_len": 64}]
)
@pytest.mark.parametrize(("gib", "platform"), [(40, "gpu"), (10, "gpu"), (3, "cpu")])
def test_layers_of_several_shapes_always_have_blocks_of_their_own(
    gib: int, platform: str, options: dict[str, Any]
) -> None:
    config = planned(gib, platform=platform, model=TWO_SHAPES, **options)
    memory, temporaries = DeviceMemory(platform, WEIGHTS + gib * GIB), estimate_temporaries(GEMMA, config.scheduler)
    taken = allocation_of(TWO_SHAPES, config, memory, params_bytes=WEIGHTS, temporary_bytes=temporaries)
    (windows,), rows = config.cache.window_blocks, config.scheduler
    assert windows >= blocks_for(1, 1024, 64, rows)
    assert config.cache.num_blocks == options.get("num_blocks", config.cache.num_blocks)
    assert taken.left(memory) >= 0
    full, _ = kind_blocks(TWO_SHAPES, config.cache)
    assert full.block_bytes == FULL * LAYER // 2
    with pytest.raises(NoRoomError, match=r"--num-blocks 999999 does not fit in .*: --num-blocks"):
        planned(gib, platform=platform, model=TWO_SHAPES, num_blocks=999_999)


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"kv_offloading_size": 1.0, "kv_offload_inputs": True}, "--kv-offload-inputs"),
        ({"kv_events_config": "{}"}, "--kv-events-config"),
        ({"kv_residency": "host", "kv_offloading_size": 1.0}, "--kv-residency host"),
    ],
)
def test_what_keeps_blocks_of_one_shape_is_refused_by_name(options: dict[str, Any], flag: str) -> None:
    reason = rf"{flag} is for models .* several \(2 of 512 numbers and 8 of 256 numbers\): drop the flag"
    with pytest.raises(ConfigError, match=reason):
        planned(40, model=TWO_SHAPES, **options)


@pytest.mark.parametrize(
    ("gib", "options", "reason"),
    [
        (40, {"max_num_seqs": 16, "kv_events_config": "{}"}, "--kv-events-config needs it"),
        (40, {"max_num_seqs": 16, "max_model_len": 1024}, "there is room for all sequences"),
        (40, {"max_num_seqs": 2, "max_model_len": 2048}, "there is room for all sequences"),
        (10, {"max_num_seqs": 64, "max_model_len": 1024}, "other sizes would hold fewer sequences"),
        (40, {"max_num_seqs": 16, "num_blocks": 26}, "other sizes would hold fewer sequences"),
    ],
)
def test_where_windows_free_nothing_the_log_says_why(gib: float, options: dict[str, Any], reason: str) -> None:
    config, wanted = planned(gib, **options), EngineOptions(**options)
    assert config.cache.window_blocks == ()
    assert why_whole(wanted, GEMMA, config).startswith(reason)
    assert reason in kinds_title(wanted, GEMMA, config)
    whole = planned(gib, **options, model=replace(GEMMA, windows=()))
    assert config == whole, "as if no layer had a window"


@pytest.mark.parametrize(("gib", "platform"), [(40, "gpu"), (9, "cpu")])
@pytest.mark.parametrize("host_dtype", ["auto", "int8"])
def test_host_memory_has_places_for_blocks_of_all_kinds(gib: int, platform: str, host_dtype: Any) -> None:
    options: dict[str, Any] = {"max_num_seqs": 16, "kv_offloading_size": 1.0, "kv_host_dtype": host_dtype}
    for model, place in ((GEMMA, FULL), (TWO_SHAPES, FULL // 2)):
        config = planned(gib, platform=platform, model=model, **options)
        memory, temporaries = DeviceMemory(platform, WEIGHTS + gib * GIB), estimate_temporaries(GEMMA, config.scheduler)
        taken = allocation_of(model, config, memory, params_bytes=WEIGHTS, temporary_bytes=temporaries)
        formats, offload = kind_formats(model, config.cache), config.offload
        assert offload is not None
        assert len(formats) == 2
        full, window = [each.host_block_bytes(host_dtype) for each in formats]
        assert place_bytes(formats, host_dtype) == gcd(full, window) == place * full // FULL if model is GEMMA else full
        assert GIB - (full + window) < taken.host == offload.host_blocks * gcd(full, window) <= GIB
        sizes = [each.block_bytes for each in formats]
        assert taken.staging == staging_bytes(*sizes) > staging_bytes(max(sizes))
        assert taken.left(memory) >= 0


def test_a_cache_that_may_be_in_host_memory_is_not_where_layers_have_several_shapes() -> None:
    options: dict[str, Any] = {
        "max_num_seqs": 1,
        "token_budget": 64,
        "kv_residency": "auto",
        "kv_offloading_size": 60.0,
    }
    assert planned(2, **options).streaming is not None, "longer sequences fit there"
    assert planned(2, model=TWO_SHAPES, **options).streaming is None


def test_the_log_says_what_each_kind_has() -> None:
    config = planned(40, max_num_seqs=16)
    one, other = (config.cache.num_blocks, *config.cache.window_blocks)
    title = f"full: {one:,} blocks in 8 layers, window 1024: {other:,} blocks in 40 layers"
    assert kinds_title(EngineOptions(), GEMMA, config) == title
    assert kinds_title(EngineOptions(), LLAMA, config) == ""


@pytest.mark.parametrize(("gib", "longest"), [(100, 131072), (40, 32768), (20, 32768), (40, 1024), (9, 64)])
def test_windows_have_blocks_of_their_own_where_more_of_the_longest_sequences_run_at_once(
    gib: int, longest: int
) -> None:
    config = planned(gib, max_model_len=longest)
    whole = planned(gib, max_model_len=longest, model=replace(GEMMA, windows=()))
    assert config.scheduler == whole.scheduler, "also the number of rows"
    if longest <= 1024:
        assert config == whole
        return
    at_once = (config.cache.window_blocks[0] - 8) // ROW, config.cache.num_blocks * 64 // longest
    assert min(at_once) > whole.cache.num_blocks * 64 / longest


def test_a_cpu_takes_no_more_memory_and_holds_more() -> None:
    model = described("gemma-3-1b-it")
    config = planned(20, platform="cpu", model=model)
    whole = planned(20, platform="cpu", model=replace(model, windows=()))
    assert config.scheduler.max_num_seqs == whole.scheduler.max_num_seqs
    assert config.cache.num_blocks > 3 * whole.cache.num_blocks
    assert blocks_bytes(model, config.cache) <= 2 * GIB
