"""What fits: decides every "auto" of EngineOptions from the model and the device's memory, before memory is taken."""

from dataclasses import dataclass, replace
from math import ceil

from jaxgen.config import (
    CacheConfig,
    ConfigError,
    EngineConfig,
    EngineOptions,
    ModelConfig,
    OffloadConfig,
    SchedulerConfig,
    StreamConfig,
)
from jaxgen.offload.host_dtype import HostDType, host_bytes
from jaxgen.offload.layer_store import LayerStore
from jaxgen.offload.staging import group_size, staging_bytes
from jaxgen.offload.stream_sizes import StreamSizes

GIB = 2**30
DEFAULT_BLOCK_SIZE = 64
CPU_CACHE_BYTES = 2 * GIB
COPIES_OF_LONGEST = 4
"""At least so many bring a layer of the longest sequence, so that the planner has a choice of parts."""
STREAMED_ROWS = 16
"""Most rows of a step when nobody names a number and the cache is streamed: each takes open blocks of all layers."""
_ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory an engine may use. ``free_bytes``: all of it on an accelerator, what the machine has left on a CPU."""

    platform: str
    free_bytes: int

    @property
    def is_cpu(self) -> bool:
        return self.platform == "cpu"

    def __str__(self) -> str:
        return f"the {self.free_bytes / GIB:.2f} GiB of {self.platform} memory that may be used"


def block_bytes(model: ModelConfig, block_size: int) -> int:
    """Bytes of one block over all layers, K and V."""
    return 2 * model.num_layers * model.num_kv_heads * block_size * model.head_dim * _ITEMSIZE[model.dtype]


def host_block_bytes(model: ModelConfig, block_size: int, host_dtype: HostDType) -> int:
    """Bytes of one block in host memory."""
    size, itemsize = block_bytes(model, block_size), _ITEMSIZE[model.dtype]
    return host_bytes(size, itemsize=itemsize, head_dim=model.head_dim, host_dtype=host_dtype)


def estimate_temporaries(model: ModelConfig, config: SchedulerConfig) -> int:
    """A first guess, in bytes, of what a step takes beside weights and cache; the compiled program gives the truth."""
    per_token = 4 * (4 * model.hidden_size + 3 * model.intermediate_size)
    per_row = 4 * 4 * model.vocab_size
    return config.token_budget * per_token + config.max_num_seqs * per_row


def cache_bytes(model: ModelConfig, config: EngineConfig, memory: DeviceMemory) -> int:
    """Bytes of ``memory`` that the KV cache takes."""
    size, streaming = config.cache.block_size, config.streaming
    if streaming is None:
        return config.cache.num_blocks * block_bytes(model, size)
    sizes = _stream_sizes(model, size, memory, keep_inputs=streaming.keep_inputs)
    return sizes.fixed(streaming.num_open) + config.cache.num_blocks * sizes.each


def resolve(
    options: EngineOptions,
    model: ModelConfig,
    memory: DeviceMemory,
    *,
    token_budget: int,
    params_bytes: int,
    temporary_bytes: int | None = None,
) -> EngineConfig:
    """The configuration that honours ``options`` and fits: weights + step temporaries (None: a guess) + KV blocks.

    ``token_budget`` is what a step has when the options name none. Raises ConfigError that names the flag, and the
    value that would fit, when there is none.
    """
    _require_positive(options)
    block_size = options.block_size or DEFAULT_BLOCK_SIZE
    scheduler = _scheduler_config(options, model, memory, token_budget)
    if temporary_bytes is None:
        temporary_bytes = estimate_temporaries(model, scheduler)
    wanted = _Wanted(options, model, memory, scheduler, block_size, params_bytes, temporary_bytes)
    if options.kv_residency == "auto":
        return _wherever(wanted)
    return _resident(wanted) if options.kv_residency == "device" else _streamed(wanted)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is asked for, and what is there."""

    options: EngineOptions
    model: ModelConfig
    memory: DeviceMemory
    scheduler: SchedulerConfig
    block_size: int
    params_bytes: int
    temporary_bytes: int

    @property
    def room(self) -> int:
        """Bytes for the cache."""
        return self.memory.free_bytes - self.params_bytes - self.temporary_bytes

    def num_blocks(self, fitting: int, most: int) -> int:
        """As many as were asked for, else ``most``; ConfigError if more were, or none fits."""
        asked, memory = self.options.num_blocks, self.memory
        if asked is not None and asked > fitting:
            would = f"--num-blocks {fitting} would" if fitting > 0 else "not even one block does"
            raise ConfigError(f"--num-blocks {asked} does not fit in {memory}: {would}")
        found = most if asked is None else asked
        if found < 1:
            remedy = "raise --gpu-memory-utilization, or lower --token-budget or --max-num-seqs"
            raise ConfigError(
                f"the model's weights ({self.params_bytes / GIB:.2f} GiB) and a step's temporaries "
                f"({self.temporary_bytes / GIB:.2f} GiB) leave no room for a KV cache in {memory}: "
                + ("free some memory" if memory.is_cpu else remedy)
            )
        return found

    def config(
        self, num_blocks: int, *, offload: OffloadConfig | None = None, streaming: StreamConfig | None = None
    ) -> EngineConfig:
        """With the longest sequence that fits, if its length was left open."""
        options, scheduler = self.options, self.scheduler
        if options.max_model_len is None:
            longest = min(scheduler.max_model_len, num_blocks * self.block_size)
            scheduler = replace(scheduler, max_model_len=longest)
        return EngineConfig(
            CacheConfig(self.block_size, num_blocks),
            scheduler,
            options.seed,
            options.max_logit_bias,
            None if options.single_shape else _narrow_width(scheduler),
            offload,
            streaming,
        )


def _resident(wanted: _Wanted) -> EngineConfig:
    """With the cache on the device."""
    model, memory, block_size = wanted.model, wanted.memory, wanted.block_size
    size, room = block_bytes(model, block_size), wanted.room
    offload = _offload_config(wanted.options, model, block_size)
    if offload is not None:
        room -= staging_bytes(size)
        if memory.is_cpu:
            room -= offload.host_blocks * host_block_bytes(model, block_size, offload.host_dtype)
    fitting = max(room, 0) // size
    most = _num_blocks(wanted.scheduler, model, memory, block_size, fitting)
    return wanted.config(wanted.num_blocks(fitting, most), offload=offload)


def _wherever(wanted: _Wanted) -> EngineConfig:
    """With the cache on the device if it can hold a sequence of the promised length there, or if the host cannot hold a
    longer one. Raises the device's ConfigError where both do."""
    found: EngineConfig | None = None
    refused: ConfigError | None = None
    try:
        found = _resident(wanted)
    except ConfigError as error:
        refused = error
    longest = found.scheduler.max_model_len if found is not None else 0
    if longest < wanted.scheduler.max_model_len and wanted.options.kv_offloading_size:
        try:
            streamed = _streamed(wanted)
        except ConfigError:
            streamed = None
        if streamed is not None and streamed.scheduler.max_model_len > longest:
            return streamed
    if found is None:
        assert refused is not None
        raise refused
    return found


def _stream_sizes(model: ModelConfig, block_size: int, memory: DeviceMemory, *, keep_inputs: bool) -> StreamSizes:
    inputs = block_size * model.hidden_size * _ITEMSIZE[model.dtype] if keep_inputs else 0
    layer = block_bytes(model, block_size) // model.num_layers
    return StreamSizes(layer, inputs, model.num_layers, on_cpu=memory.is_cpu)


def _streamed(wanted: _Wanted) -> EngineConfig:
    """With the cache in host memory."""
    if wanted.options.max_num_seqs is None:
        rows = min(wanted.scheduler.max_num_seqs, STREAMED_ROWS)
        wanted = replace(wanted, scheduler=replace(wanted.scheduler, max_num_seqs=rows))
    options, model, scheduler, block_size = wanted.options, wanted.model, wanted.scheduler, wanted.block_size
    keep_inputs = _keep_inputs(options, model)
    sizes = _stream_sizes(model, block_size, wanted.memory, keep_inputs=keep_inputs)
    in_flight = scheduler.token_budget // block_size
    num_open = in_flight + LayerStore.most_open(scheduler.token_budget, scheduler.max_num_seqs, block_size)
    held = int(options.kv_offloading_size * GIB / sizes.host)
    fitting = max(wanted.room - sizes.fixed(num_open), 0) // sizes.each
    _require_host_blocks(wanted, sizes, held)
    useful = scheduler.max_num_seqs * -(-scheduler.max_model_len // block_size)
    num_blocks = wanted.num_blocks(fitting, min(held, fitting, useful))
    if options.num_blocks is None and num_blocks * block_size < (options.max_model_len or 0):
        raise ConfigError(
            f"{wanted.memory} holds one layer of {num_blocks} blocks beside all else: "
            f"use --max-model-len {num_blocks * block_size} or less"
        )
    longest = min(-(-scheduler.max_model_len // block_size), num_blocks)
    group = min(group_size(sizes.layer), -(-longest // COPIES_OF_LONGEST))
    streaming = StreamConfig(num_open, group, keep_inputs, options.kv_offload_policy)
    return wanted.config(num_blocks, streaming=streaming)


def _keep_inputs(options: EngineOptions, model: ModelConfig) -> bool:
    """Whether layer inputs go to the host too. ConfigError for options that a streamed cache cannot honour."""
    size, policy = options.kv_offloading_size, options.kv_offload_policy
    if options.kv_host_dtype != "auto":
        raise ConfigError(
            f"--kv-host-dtype {options.kv_host_dtype} is for blocks behind a cache on the device: "
            "with --kv-residency host use --kv-host-dtype auto"
        )
    if not 0 < size < float("inf"):
        raise ConfigError(f"--kv-residency host needs --kv-offloading-size, the GiB of host memory to use, not {size}")
    pays = model.hidden_size < 2 * model.num_kv_heads * model.head_dim
    if policy == "recompute" and not pays:
        raise ConfigError(
            "--kv-offload-policy recompute brings layer inputs to the device, which in this model are no fewer bytes "
            "than K and V: use plan or transfer"
        )
    return pays and policy != "transfer"


def _require_host_blocks(wanted: _Wanted, sizes: StreamSizes, held: int) -> None:
    """ConfigError if the host holds fewer blocks than were asked for, or than the promised sequence has."""
    options, block_size = wanted.options, wanted.block_size
    if options.num_blocks is not None:
        need, asked = options.num_blocks, f"--num-blocks {options.num_blocks}"
    elif options.max_model_len is not None:
        need, asked = -(-options.max_model_len // block_size), f"a sequence of --max-model-len {options.max_model_len}"
    else:
        need, asked = 1, "one block"
    if held < need:
        enough = ceil(1000 * need * sizes.host / GIB) / 1000
        raise ConfigError(
            f"--kv-offloading-size {options.kv_offloading_size} GiB does not hold {asked}: "
            f"use --kv-offloading-size {enough} or more"
            + (f", or --max-model-len {held * block_size} or less" if options.max_model_len and held else "")
        )


def default_max_num_seqs(token_budget: int, memory: DeviceMemory) -> int:
    """Rows of a step when nobody names a number. A row costs logits and KV cache, and hardly any of a step's time."""
    return min(token_budget, 16 if memory.is_cpu else 256)


def _scheduler_config(
    options: EngineOptions, model: ModelConfig, memory: DeviceMemory, token_budget: int
) -> SchedulerConfig:
    token_budget = options.token_budget or max(token_budget, options.max_num_seqs or 1)
    max_num_seqs = options.max_num_seqs or default_max_num_seqs(token_budget, memory)
    if options.max_model_len is not None and options.max_model_len > model.max_position:
        raise ConfigError(
            f"--max-model-len {options.max_model_len} is over the {model.max_position} positions the model has: "
            f"use --max-model-len {model.max_position} or less"
        )
    return SchedulerConfig(
        token_budget,
        max_num_seqs,
        options.max_model_len or model.max_position,
        prefix_caching=options.prefix_caching,
    )


def _offload_config(options: EngineOptions, model: ModelConfig, block_size: int) -> OffloadConfig | None:
    size = options.kv_offloading_size
    if size == 0:
        return None
    if not 0 < size < float("inf"):
        raise ConfigError(f"--kv-offloading-size must be 0 (none) or more GiB, not {size}")
    if not options.prefix_caching:
        raise ConfigError("--kv-offloading-size needs the prefix cache, by which blocks are found: drop one of the two")
    one = host_block_bytes(model, block_size, options.kv_host_dtype)
    blocks = int(size * GIB / one)
    if blocks < 1:
        raise ConfigError(f"--kv-offloading-size {size} GiB does not hold one block of {one / GIB:.4f} GiB")
    return OffloadConfig(blocks, options.kv_offload_policy, options.kv_host_dtype)


def _narrow_width(scheduler: SchedulerConfig) -> int | None:
    """One token of every row, where that is so much less than the budget that a second program may pay."""
    return scheduler.max_num_seqs if 2 * scheduler.max_num_seqs <= scheduler.token_budget else None


def _num_blocks(
    scheduler: SchedulerConfig, model: ModelConfig, memory: DeviceMemory, block_size: int, fitting: int
) -> int:
    """As many blocks as all rows at full length can use, within what fits and, on a CPU, a modest share of memory."""
    useful = scheduler.max_num_seqs * -(-scheduler.max_model_len // block_size)
    if not memory.is_cpu:
        return min(fitting, useful)
    share = min(CPU_CACHE_BYTES, memory.free_bytes // 2) // block_bytes(model, block_size)
    return min(fitting, useful, share)


def _require_positive(options: EngineOptions) -> None:
    for name in ("max_model_len", "token_budget", "max_num_seqs", "block_size", "num_blocks"):
        value: int | None = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be 1 or more, not {value}")
    if not 0.0 < options.gpu_memory_utilization <= 1.0:
        raise ConfigError(f"--gpu-memory-utilization must be in (0, 1], not {options.gpu_memory_utilization}")
