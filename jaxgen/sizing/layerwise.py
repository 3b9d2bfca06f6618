"""Size a KV cache that is in host memory and streamed through the device. Host only, no jax."""

from dataclasses import replace
from math import ceil

from jaxgen.cache.cache_format import CacheFormat
from jaxgen.core.config import EngineConfig, EngineOptions, StreamConfig
from jaxgen.core.errors import ConfigError, NoRoomError
from jaxgen.core.model_config import ModelConfig
from jaxgen.layerwise.planning.layer_store import LayerStore
from jaxgen.offload.planning.staging import group_size
from jaxgen.sizing.device_memory import GIB
from jaxgen.sizing.layerwise_sizes import StreamSizes, stream_sizes
from jaxgen.sizing.memory_request import MemoryRequest
from jaxgen.sizing.window_sizes import CACHED_SHARE

COPIES_OF_LONGEST = 4
"""Fewest copies in which a layer of the longest sequence is streamed, so that the planner can split it."""
STREAMED_ROWS = 16
"""Default for the most rows of a step if the cache is streamed: each row takes open blocks of all layers."""


def streamed_cache(wanted: MemoryRequest) -> EngineConfig:
    """Return the configuration with the cache in host memory. Raises ConfigError."""
    if wanted.options.max_num_seqs is None:
        rows = min(wanted.scheduler.max_num_seqs, STREAMED_ROWS)
        wanted = replace(wanted, scheduler=replace(wanted.scheduler, max_num_seqs=rows))
    options, model, scheduler, block_size = wanted.options, wanted.model, wanted.scheduler, wanted.block_size
    keep_inputs = _streams_inputs(options, model)
    sizes = stream_sizes(model, block_size, wanted.memory, keep_inputs=keep_inputs)
    in_flight = scheduler.token_budget // block_size
    num_open = in_flight + LayerStore.most_open(scheduler.token_budget, scheduler.max_num_seqs, block_size)
    held = int(options.kv_offloading_size * GIB / sizes.host)
    room = max(wanted.room - sizes.fixed(num_open), 0)
    useful = scheduler.max_num_seqs * -(-scheduler.max_model_len // block_size)
    snapshots = _more_snapshots(wanted, min(room, held * sizes.host), options.num_blocks or min(held, useful))
    fitting = (room - snapshots * model.state_bytes) // sizes.each
    _require_host_blocks(wanted, sizes, held)
    num_blocks = wanted.num_blocks(fitting, min(held, fitting, useful))
    if options.num_blocks is None and num_blocks * block_size < (options.max_model_len or 0):
        raise NoRoomError(
            f"{wanted.memory} holds one layer of {num_blocks} blocks besides everything else: "
            f"use --max-model-len {num_blocks * block_size} or less"
        )
    longest = min(-(-scheduler.max_model_len // block_size), num_blocks)
    group = min(group_size(sizes.layer), -(-longest // COPIES_OF_LONGEST))
    streaming = StreamConfig(num_open, group, keep_inputs, options.kv_offload_policy)
    return wanted.config(num_blocks, more_snapshots=snapshots, streaming=streaming)


def _more_snapshots(wanted: MemoryRequest, size: int, blocks: int) -> int:
    """Return the snapshots of states in addition to those of the rows, which are on the device too.

    They take a share of ``size``, the bytes of the cache or of the device's room for it. There is at most one for each
    of its ``blocks``.
    """
    if not wanted.least_snapshots:
        return 0
    return min(int(CACHED_SHARE * size) // wanted.model.state_bytes, blocks)


def _streams_inputs(options: EngineOptions, model: ModelConfig) -> bool:
    """Whether layer inputs are kept in host memory too. ConfigError for options that a streamed cache excludes."""
    size, policy = options.kv_offloading_size, options.kv_offload_policy
    if options.kv_host_dtype != "auto":
        raise ConfigError(
            f"--kv-host-dtype {options.kv_host_dtype} is for blocks behind a cache on the device: "
            "with --kv-residency host use --kv-host-dtype auto"
        )
    if options.kv_offload_inputs:
        raise ConfigError(
            "--kv-offload-inputs is for a cache on the device: with --kv-residency host layer inputs are kept wherever "
            "that pays, so drop the flag"
        )
    if options.kv_tier is not None or options.kv_tier_dir is not None:
        flag = "--kv-tier-dir" if options.kv_tier is None else "--kv-tier"
        raise ConfigError(
            f"{flag} is behind the host memory of a cache on the device: with --kv-residency host drop the flag"
        )
    if not 0 < size < float("inf"):
        raise ConfigError(f"--kv-residency host needs --kv-offloading-size, the GiB of host memory to use, not {size}")
    if policy == "recompute" and model.states:
        raise ConfigError(
            "--kv-offload-policy recompute with --kv-residency host is for models whose layers all have keys and "
            "values, and layers of this one have a state of each sequence in their place: use plan or transfer"
        )
    pays = not model.states and CacheFormat.of(model, 1).inputs_are_smaller
    if policy == "recompute" and not pays:
        raise ConfigError(
            "--kv-offload-policy recompute copies layer inputs to the device, which in this model are not smaller "
            "than K and V: use plan or transfer"
        )
    return pays and policy != "transfer"


def _require_host_blocks(wanted: MemoryRequest, sizes: StreamSizes, held: int) -> None:
    """Raise NoRoomError if the host holds fewer blocks than --num-blocks, or than a sequence of --max-model-len."""
    options, block_size = wanted.options, wanted.block_size
    if options.num_blocks is not None:
        need, asked = options.num_blocks, f"--num-blocks {options.num_blocks}"
    elif options.max_model_len is not None:
        need, asked = -(-options.max_model_len // block_size), f"a sequence of --max-model-len {options.max_model_len}"
    else:
        need, asked = 1, "one block"
    if held < need:
        enough = ceil(1000 * need * sizes.host / GIB) / 1000
        raise NoRoomError(
            f"--kv-offloading-size {options.kv_offloading_size} GiB does not hold {asked}: "
            f"use --kv-offloading-size {enough} or more"
            + (f", or --max-model-len {held * block_size} or less" if options.max_model_len and held else "")
        )
