"""What fits: decides every "auto" of EngineOptions from the model and the device's memory, before memory is taken."""

from dataclasses import dataclass, replace

from jaxgen.config import (
    CacheConfig,
    ConfigError,
    EngineConfig,
    EngineOptions,
    ModelConfig,
    OffloadConfig,
    SchedulerConfig,
)
from jaxgen.offload.host_dtype import HostDType, host_bytes
from jaxgen.offload.staging import staging_bytes

GIB = 2**30
DEFAULT_BLOCK_SIZE = 64
CPU_CACHE_BYTES = 2 * GIB
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


def block_bytes(model: ModelConfig, block_size: int, *, inputs: bool = False) -> int:
    """Bytes of one block over all layers: K and V, with ``inputs`` the layer inputs too."""
    kv = 2 * model.num_layers * model.num_kv_heads * block_size * model.head_dim * _ITEMSIZE[model.dtype]
    return kv + (input_bytes(model, block_size) if inputs else 0)


def input_bytes(model: ModelConfig, block_size: int) -> int:
    """Bytes of the layer inputs of one block over all layers."""
    return model.num_layers * block_size * model.hidden_size * _ITEMSIZE[model.dtype]


def host_block_bytes(model: ModelConfig, block_size: int, host_dtype: HostDType, *, inputs: bool = False) -> int:
    """Bytes of one block in host memory, with ``inputs`` its layer inputs too."""
    size, itemsize = block_bytes(model, block_size), _ITEMSIZE[model.dtype]
    kv = host_bytes(size, itemsize=itemsize, head_dim=model.head_dim, host_dtype=host_dtype)
    return kv + (input_bytes(model, block_size) if inputs else 0)


def estimate_temporaries(model: ModelConfig, config: SchedulerConfig) -> int:
    """A first guess, in bytes, of what a step takes beside weights and cache; the compiled program gives the truth."""
    per_token = 4 * (4 * model.hidden_size + 3 * model.intermediate_size)
    per_row = 4 * 4 * model.vocab_size
    return config.token_budget * per_token + config.max_num_seqs * per_row


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
    offload, inputs = _offload_config(options, model, block_size), _keeps_inputs(options, model)
    size = block_bytes(model, block_size, inputs=inputs)
    room = memory.free_bytes - params_bytes - temporary_bytes
    if offload is not None:
        room -= staging_bytes(size)
        if memory.is_cpu:
            room -= offload.host_blocks * host_block_bytes(model, block_size, offload.host_dtype, inputs=inputs)
    fitting = max(room, 0) // size
    if options.num_blocks is not None:
        num_blocks = options.num_blocks
        if num_blocks > fitting:
            would = f"--num-blocks {fitting} would" if fitting > 0 else "not even one block does"
            raise ConfigError(f"--num-blocks {num_blocks} does not fit in {memory}: {would}")
    else:
        num_blocks = _num_blocks(scheduler, memory, block_size, size, fitting)
    if num_blocks < 1:
        raise ConfigError(
            f"the model's weights ({params_bytes / GIB:.2f} GiB) and a step's temporaries "
            f"({temporary_bytes / GIB:.2f} GiB) leave no room for a KV cache in {memory}: "
            + ("free some memory" if memory.is_cpu else "raise --gpu-memory-utilization or lower --token-budget")
        )
    if options.max_model_len is None:
        scheduler = replace(scheduler, max_model_len=min(scheduler.max_model_len, num_blocks * block_size))
    return EngineConfig(
        CacheConfig(block_size, num_blocks, inputs),
        scheduler,
        options.seed,
        options.max_logit_bias,
        None if options.single_shape else _narrow_width(scheduler),
        offload,
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
    inputs = _keeps_inputs(options, model)
    one = host_block_bytes(model, block_size, options.kv_host_dtype, inputs=inputs)
    blocks = int(size * GIB / one)
    if blocks < 1:
        raise ConfigError(f"--kv-offloading-size {size} GiB does not hold one block of {one / GIB:.4f} GiB")
    return OffloadConfig(blocks, options.kv_offload_policy, options.kv_host_dtype)


def _keeps_inputs(options: EngineOptions, model: ModelConfig) -> bool:
    if not options.kv_offload_inputs:
        return False
    if options.kv_offloading_size == 0:
        raise ConfigError("--kv-offload-inputs needs host memory to keep them in: set --kv-offloading-size")
    if options.kv_host_dtype != "auto":
        raise ConfigError(
            f"--kv-offload-inputs keeps blocks as they are, --kv-host-dtype {options.kv_host_dtype} quantises them: "
            "drop one of the two"
        )
    kv, inputs = block_bytes(model, 1), input_bytes(model, 1)
    if inputs >= kv:
        raise ConfigError(
            f"--kv-offload-inputs: the layer inputs of a token have {inputs} bytes, its K and V {kv}, so that nothing "
            "would come back sooner: drop the flag"
        )
    return True


def _narrow_width(scheduler: SchedulerConfig) -> int | None:
    """One token of every row, where that is so much less than the budget that a second program may pay."""
    return scheduler.max_num_seqs if 2 * scheduler.max_num_seqs <= scheduler.token_budget else None


def _num_blocks(scheduler: SchedulerConfig, memory: DeviceMemory, block_size: int, size: int, fitting: int) -> int:
    """As many blocks as all rows at full length can use, within what fits and, on a CPU, a modest share of memory."""
    useful = scheduler.max_num_seqs * -(-scheduler.max_model_len // block_size)
    if not memory.is_cpu:
        return min(fitting, useful)
    share = min(CPU_CACHE_BYTES, memory.free_bytes // 2) // size
    return min(fitting, useful, share)


def _require_positive(options: EngineOptions) -> None:
    for name in ("max_model_len", "token_budget", "max_num_seqs", "block_size", "num_blocks"):
        value: int | None = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be 1 or more, not {value}")
    if not 0.0 < options.gpu_memory_utilization <= 1.0:
        raise ConfigError(f"--gpu-memory-utilization must be in (0, 1], not {options.gpu_memory_utilization}")
