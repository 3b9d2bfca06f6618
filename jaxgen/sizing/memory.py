"""Resolve all options left open in EngineOptions from the model and the device's memory, before allocation."""

from dataclasses import replace
from math import floor

from jaxgen.cache.cache_format import CacheFormat, place_bytes
from jaxgen.core.config import LEAST_MODEL_LEN, EngineConfig, EngineOptions, KVResidency, OffloadConfig
from jaxgen.core.errors import ConfigError, NoRoomError
from jaxgen.core.kv_dtype import parse_kv_dtype
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.speculation import parse_speculation
from jaxgen.offload.planning.staging import staging_bytes
from jaxgen.offload.tiers.kv_tier.address import tier_address
from jaxgen.sizing.allocation import allocation_of, estimate_temporaries, slack_bytes
from jaxgen.sizing.device_memory import GIB, DeviceMemory
from jaxgen.sizing.layerwise import streamed_cache
from jaxgen.sizing.memory_request import MemoryRequest
from jaxgen.sizing.step_bounds import DEFAULT_BLOCK_SIZE, scheduler_config
from jaxgen.sizing.token_budget import GPU_ROWS
from jaxgen.sizing.window_sizes import CACHED_SHARE, WindowSizes, check_rows

CPU_CACHE_BYTES = 2 * GIB
HOST_BYTES_BEFORE_TIER = GIB
"""Bytes of host memory between device and KV tier, or an eighth of a CPU's memory, unless the options say more."""


def resolve(
    options: EngineOptions,
    model: ModelConfig,
    memory: DeviceMemory,
    *,
    token_budget: int,
    params_bytes: int,
    temporary_bytes: int | None = None,
    dequantised_bytes: int = 0,
    most_rows: int = GPU_ROWS,
) -> EngineConfig:
    """Return the configuration that meets ``options`` and fits: weights, step temporaries (None: estimated), KV blocks.

    ``token_budget``: tokens of a step if the options do not name them. ``dequantised_bytes``: numbers that a step makes
    of codes at a time, on top of the estimate. ``most_rows``: of a step on a GPU, unless the options say more. If no
    configuration fits, raises NoRoomError that names the flag and the value that would fit. Raises ConfigError for
    options that are invalid in any memory.
    """
    check_options(options)
    check_rows(options, model)
    if memory.host_bytes is not None and not memory.is_cpu and options.kv_offloading_size * GIB > memory.host_bytes:
        raise _too_large(options, memory.host_bytes, f"the {memory.host_bytes / GIB:.2f} GiB of the host's memory")
    block_size = options.block_size or DEFAULT_BLOCK_SIZE
    room = memory.free_bytes - params_bytes
    scheduler = scheduler_config(options, model, token_budget, is_cpu=memory.is_cpu, room=room, most_rows=most_rows)
    wanted = MemoryRequest(
        options, model, memory, scheduler, block_size, params_bytes, temporary_bytes, dequantised_bytes
    )
    if options.kv_residency == "auto":
        return _wherever(wanted)
    return _resident(wanted) if options.kv_residency == "device" else streamed_cache(wanted)


def _resident(wanted: MemoryRequest) -> EngineConfig:
    """Return the configuration with the cache on the device. Raises ConfigError."""
    model, memory, block_size = wanted.model, wanted.memory, wanted.block_size
    offload, inputs = _offload_config(wanted.options, model, memory, block_size), _keeps_inputs(wanted.options, model)
    block = CacheFormat.of(model, block_size, keep_inputs=inputs)
    size, room = block.block_bytes, _beside_host(wanted, offload, [block])
    if offload is not None and memory.is_cpu:
        host = _host_bytes(offload, [block])
        if room < size <= room + host:
            most = room + host - size
            raise _too_large(wanted.options, most, f"{memory} after weights, temporaries and a KV cache")
    snapshots = _more_snapshots(wanted, room, size, host_blocks=0 if offload is None else offload.host_blocks)
    room -= snapshots * model.state_bytes
    fitting = max(room, 0) // size
    share = _cpu_share(memory) - snapshots * model.state_bytes if memory.is_cpu else room
    useful = _useful_blocks(wanted)
    most = min(fitting, useful, share // size)
    sizes = WindowSizes.of(wanted.options, model, wanted.scheduler, block_size)
    if sizes is None:
        num_blocks = wanted.num_blocks(fitting, most)
        return wanted.config(num_blocks, keep_inputs=inputs, more_snapshots=snapshots, offload=offload)
    formats = [block.of_kind(kind) for kind in model.cache_kinds]
    by_kind = _in_places(offload, block, formats)
    room = _beside_host(wanted, by_kind, formats) - snapshots * model.state_bytes
    if not sizes.alike:
        fitting, most = sizes.most_blocks(room), min(useful, sizes.blocks(min(room, share)))
    asked, usual = wanted.options.num_blocks, min(room, share)
    if asked is not None:
        wanted.num_blocks(max(fitting, sizes.most_blocks(room)), most)
        windows = sizes.window_blocks(asked, min(room, sizes.room_for(asked)))
        kept = by_kind if windows else offload
        return wanted.config(asked, window_blocks=windows, more_snapshots=snapshots, offload=kept)
    more = min(useful, sizes.blocks(usual))
    windows = sizes.window_blocks(more, usual)
    if not sizes.alike:
        wanted.num_blocks(fitting, most)
    elif not sizes.holds_more(more, windows, most):
        more, windows = wanted.num_blocks(fitting, most), ()
    kept = by_kind if windows else offload
    return wanted.config(more, window_blocks=windows, more_snapshots=snapshots, offload=kept)


def _in_places(offload: OffloadConfig | None, block: CacheFormat, formats: list[CacheFormat]) -> OffloadConfig | None:
    """Return the host memory of an ``offload`` whose blocks are ``block``, in places for blocks of ``formats``."""
    if offload is None:
        return None
    places = _host_bytes(offload, [block]) // place_bytes(formats, offload.host_dtype)
    return replace(offload, host_blocks=places)


def _host_bytes(offload: OffloadConfig, formats: list[CacheFormat]) -> int:
    return offload.host_blocks * place_bytes(formats, offload.host_dtype)


def _beside_host(wanted: MemoryRequest, offload: OffloadConfig | None, formats: list[CacheFormat]) -> int:
    """Return the room for a cache of blocks of ``formats`` next to staging memory, and on a CPU host memory."""
    if offload is None:
        return wanted.room
    staging = staging_bytes(*[each.block_bytes for each in formats], state_bytes=wanted.model.state_bytes)
    return wanted.room - staging - (_host_bytes(offload, formats) if wanted.memory.is_cpu else 0)


def _useful_blocks(wanted: MemoryRequest) -> int:
    """Return the blocks that all rows at full length can use."""
    return wanted.scheduler.max_num_seqs * -(-wanted.scheduler.max_model_len // wanted.block_size)


def _more_snapshots(wanted: MemoryRequest, room: int, block_bytes: int, *, host_blocks: int) -> int:
    """Return the snapshots of states in addition to those of the rows, at most one for each block.

    They are for prefixes to be found again: a prefix is found where a snapshot is. ``host_blocks``: those in host
    memory, which are found too.
    """
    if not wanted.least_snapshots or room < block_bytes:
        return 0
    share = min(room, _cpu_share(wanted.memory)) if wanted.memory.is_cpu else room
    most, asked = min(share // block_bytes, _useful_blocks(wanted)), wanted.options.num_blocks
    if asked is not None:
        most = min(most, asked + host_blocks)
    return min(int(CACHED_SHARE * share) // wanted.model.state_bytes, most)


def _wherever(wanted: MemoryRequest) -> EngineConfig:
    """Return the configuration with the cache on the device or, if longer sequences fit there, in host memory.

    It is on the device if a sequence of the wanted length fits there. Raises the device's ConfigError if neither fits.
    """
    resident: EngineConfig | None = None
    refused: ConfigError | None = None
    try:
        resident = _resident(wanted)
    except ConfigError as error:
        refused = error
    longest = resident.scheduler.max_model_len if resident is not None else 0
    streams = wanted.options.kv_offloading_size and not wanted.model.has_several_rows
    if longest < wanted.scheduler.max_model_len and streams:
        try:
            streamed = streamed_cache(wanted)
        except ConfigError:
            streamed = None
        if streamed is not None and streamed.scheduler.max_model_len > longest:
            return streamed
    if resident is None:
        assert refused is not None
        raise refused
    return resident


def refit(
    options: EngineOptions,
    model: ModelConfig,
    config: EngineConfig,
    memory: DeviceMemory,
    *,
    params_bytes: int,
    temporary_bytes: int,
) -> EngineConfig:
    """Return ``config`` if it fits now that a step's temporaries are known, else one with fewer blocks.

    Temporaries may take half of the slack, so that a good estimate is not replaced. The context stays as long as it was
    planned. Raises NoRoomError if it does not fit then.
    """
    allocation = allocation_of(model, config, memory, params_bytes=params_bytes, temporary_bytes=temporary_bytes)
    if allocation.left(memory) + allocation.slack // 2 >= 0:
        return config
    return _again(options, model, config, memory, params_bytes, temporary_bytes)


def with_fewer_blocks(
    options: EngineOptions,
    model: ModelConfig,
    config: EngineConfig,
    memory: DeviceMemory,
    *,
    params_bytes: int,
    dequantised_bytes: int = 0,
) -> tuple[DeviceMemory, EngineConfig]:
    """Return less of ``memory``, and the configuration for it, after the device ran out of memory in its first steps.

    It leaves free once more what a step needs, since the free memory may be in pieces that are too small. The context
    stays as long as it was planned. Raises NoRoomError if it does not fit then.
    """
    temporaries = estimate_temporaries(model, config.scheduler) + dequantised_bytes
    allocation = allocation_of(model, config, memory, params_bytes=params_bytes, temporary_bytes=temporaries)
    less = replace(memory, free_bytes=memory.free_bytes - allocation.temporaries - allocation.rows - allocation.slack)
    return less, _again(options, model, config, less, params_bytes, temporaries)


def _again(
    options: EngineOptions,
    model: ModelConfig,
    config: EngineConfig,
    memory: DeviceMemory,
    params_bytes: int,
    temporary_bytes: int,
) -> EngineConfig:
    """Plan once more, for the same rows and context and a cache in the same place. Raises NoRoomError."""
    scheduler = config.scheduler
    residency: KVResidency = "device" if config.streaming is None else "host"
    rows, longest = scheduler.max_num_seqs, scheduler.max_model_len
    return resolve(
        replace(options, max_num_seqs=rows, max_model_len=longest, kv_residency=residency),
        model,
        memory,
        token_budget=scheduler.token_budget,
        params_bytes=params_bytes,
        temporary_bytes=temporary_bytes,
    )


def _offload_config(
    options: EngineOptions, model: ModelConfig, memory: DeviceMemory, block_size: int
) -> OffloadConfig | None:
    size, flag = options.kv_offloading_size, "--kv-offloading-size"
    if not 0 <= size < float("inf"):
        raise ConfigError(f"--kv-offloading-size must be 0 (none) or more GiB, not {size}")
    tier = tier_address(options.kv_tier, options.kv_tier_dir, options.kv_tier_password)
    if size == 0 and tier is not None:
        bytes_here = (memory.free_bytes - slack_bytes(memory)) // 8 if memory.is_cpu else HOST_BYTES_BEFORE_TIER
        size, flag = min(bytes_here, HOST_BYTES_BEFORE_TIER) / GIB, "--kv-tier" if options.kv_tier else "--kv-tier-dir"
    if size == 0:
        return None
    if not options.prefix_caching:
        raise ConfigError(f"{flag} needs the prefix cache, by which blocks are found: drop one of the two")
    block = CacheFormat.of(model, block_size, keep_inputs=_keeps_inputs(options, model))
    block_bytes = block.host_block_bytes(options.kv_host_dtype)
    blocks = int(size * GIB / block_bytes)
    if blocks < 1:
        raise NoRoomError(f"--kv-offloading-size {size} GiB does not hold one block of {block_bytes / GIB:.4f} GiB")
    tier_bytes = 0 if tier is None else int(options.kv_tier_size * GIB)
    if tier is not None and tier_bytes < 2 * block_bytes:
        raise ConfigError(
            f"--kv-tier-size {options.kv_tier_size} GiB does not hold two blocks of "
            f"{block_bytes / GIB:.4f} GiB: use more"
        )
    key = (options.kv_tier_key or "").encode()
    return OffloadConfig(blocks, options.kv_offload_policy, options.kv_host_dtype, tier, tier_bytes, key)


def _too_large(options: EngineOptions, most: int, where: str) -> NoRoomError:
    """Return the error for more host memory than there is. ``most``: the bytes that would do."""
    would = floor(100 * most / GIB) / 100
    return NoRoomError(
        f"--kv-offloading-size {options.kv_offloading_size:g} GiB does not fit in {where}: "
        + (f"--kv-offloading-size {would:g} would" if would > 0 else "leave it out")
    )


def _keeps_inputs(options: EngineOptions, model: ModelConfig) -> bool:
    if not options.kv_offload_inputs:
        return False
    if options.kv_offloading_size == 0:
        raise ConfigError("--kv-offload-inputs needs host memory to keep them in: set --kv-offloading-size")
    if model.states or model.readers:
        instead = "read those of others" if model.readers else "have a state of each sequence in their place"
        raise ConfigError(
            "--kv-offload-inputs is for models whose layers all have keys and values, and layers of this one "
            f"{instead}: drop the flag"
        )
    if options.kv_host_dtype != "auto":
        raise ConfigError(
            f"--kv-offload-inputs keeps blocks as they are, --kv-host-dtype {options.kv_host_dtype} quantises them: "
            "drop one of the two"
        )
    token = CacheFormat.of(model, 1)
    if not token.inputs_are_smaller:
        raise ConfigError(
            f"--kv-offload-inputs: the layer inputs of a token have {token.input_bytes} bytes, its K and V "
            f"{token.kv_bytes}, so that nothing would come back sooner: drop the flag"
        )
    return True


def _cpu_share(memory: DeviceMemory) -> int:
    """Return the modest share of a CPU's memory that a cache takes, unless more blocks are asked for."""
    return _rounded(min(CPU_CACHE_BYTES, (memory.free_bytes - slack_bytes(memory)) // 2))


def _rounded(size: int) -> int:
    """Return the size rounded down to a power of two, or to one and a half times such a power.

    The number of blocks is a shape of the programs. A start with a little more or less free memory finds those of an
    earlier one then.
    """
    step = 1 << max(0, size.bit_length() - 2)
    return size // step * step


def check_options(options: EngineOptions) -> None:
    """Raise ConfigError for options that are invalid on all devices."""
    for name in ("max_model_len", "token_budget", "max_num_seqs", "block_size", "num_blocks"):
        value: int | None = getattr(options, name)
        least = LEAST_MODEL_LEN if name == "max_model_len" else 1
        if value is not None and value < least:
            raise ConfigError(f"--{name.replace('_', '-')} must be {least} or more, not {value}")
    parse_speculation(options.speculative_config)
    if not 0 < options.kv_tier_size < float("inf"):
        raise ConfigError(f"--kv-tier-size must be more than 0 GiB, not {options.kv_tier_size}")
    if parse_kv_dtype(options.kv_cache_dtype) != "auto" and options.kv_host_dtype != "auto":
        raise ConfigError(
            f"--kv-host-dtype {options.kv_host_dtype} quantises blocks that --kv-cache-dtype {options.kv_cache_dtype} "
            "has quantised on the device: drop one of the two"
        )
    if not 0.0 < options.gpu_memory_utilization <= 1.0:
        raise ConfigError(f"--gpu-memory-utilization must be in (0, 1], not {options.gpu_memory_utilization}")
