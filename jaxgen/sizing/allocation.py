"""Count the bytes that an engine allocates in its device's memory, by purpose. Host only, no jax."""

from dataclasses import asdict, dataclass, replace

from jaxgen.cache.cache_format import blocks_bytes, kind_blocks, kind_formats, place_bytes
from jaxgen.core.config import EngineConfig, SchedulerConfig
from jaxgen.core.model_config import ITEMSIZE, ModelConfig
from jaxgen.offload.planning.staging import staging_bytes
from jaxgen.sizing.device_memory import DeviceMemory
from jaxgen.sizing.layerwise_sizes import stream_sizes

LOGITS_AT_ONCE = 5
"""Arrays of float32 logits that a step holds at the same time, as compiled for GPUs (docs/performance.md)."""
HIDDEN_AT_ONCE = 4
"""Arrays of float32 hidden states that a layer holds at the same time."""
OUTPUTS_AT_ONCE = 2
"""Outputs of steps: of the one that runs, and of the one before, which the host has not read yet."""
ROW_STATES_AT_ONCE = 2
"""Copies of the state of all rows: the kept one, and one that is loaded from the host or made again."""
ROW_WORDS = 140
"""32-bit words of a row's sampling parameters, without its logit_bias, whose entries have two words each."""
MIB = 2**20
LEAST_SLACK, SLACK_SHARE = 256 * MIB, 0.01
"""Memory of an accelerator's pool that is not planned: at least these bytes, or this share of the pool."""
CPU_SLACK = 384 * MIB
"""Memory that the process itself takes after the plan: XLA, its compiler, and programs (350 MiB were measured)."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """Bytes of a device's memory by purpose.

    ``temporaries``: of a step, with its outputs. ``rows``: state of the running sequences. ``slack``: left to
    fragmentation, to small programs, to what the estimate of temporaries missed, and on a CPU to the process itself.
    ``staging``: for copies to and from the host. ``host``: KV blocks in host memory, which on a CPU is the device's.
    ``states``: what layers have in place of K and V, of the rows and of their snapshots.
    """

    weights: int
    temporaries: int
    rows: int
    slack: int
    cache: int = 0
    staging: int = 0
    host: int = 0
    states: int = 0

    def left(self, memory: DeviceMemory) -> int:
        """Return the bytes of ``memory`` that nothing takes; negative: the missing bytes."""
        of_steps = self.weights + self.temporaries + self.rows + self.states + self.slack
        on_device = of_steps + self.cache + self.staging
        return memory.free_bytes - on_device - (self.host if memory.is_cpu else 0)

    def title(self, memory: DeviceMemory) -> str:
        """Name the parts that are not empty, with their sizes, for the log."""
        parts = [f"{name} {size / MIB:,.0f}" for name, size in asdict(self).items() if size]
        return f"{', '.join(parts)} MiB of {memory}"


def estimate_temporaries(model: ModelConfig, scheduler: SchedulerConfig) -> int:
    """Estimate a step's bytes without weights, cache and rows; the compiled program gives the number later."""
    outputs = OUTPUTS_AT_ONCE * model.hidden_size * ITEMSIZE[model.dtype]
    per_token = 4 * (HIDDEN_AT_ONCE * model.hidden_size + model.inner_values) + outputs
    return scheduler.token_budget * per_token + scheduler.max_num_seqs * LOGITS_AT_ONCE * 4 * model.vocab_size


def row_state_bytes(
    model: ModelConfig, scheduler: SchedulerConfig, block_size: int, max_logit_bias: int, *, num_kinds: int = 1
) -> int:
    """Return the bytes of the state of all rows (``RowState``).

    A row has a block table for each kind of cache, and sampling parameters. For each token of the vocabulary it has a
    count, whether the prompt has the token, and a bit for whether it is allowed.
    """
    params = ROW_WORDS + 2 * max_logit_bias
    per_row = 4 * (1 + params) + _token_states(model)
    tables = num_kinds * table_bytes(scheduler, block_size)
    return scheduler.max_num_seqs * per_row + tables + 4 * params  # parameters also have a row for padding


def table_bytes(scheduler: SchedulerConfig, block_size: int) -> int:
    """Return the bytes of a block table of all rows."""
    return 4 * scheduler.max_num_seqs * -(-scheduler.max_model_len // block_size)


def _token_states(model: ModelConfig) -> int:
    """Return the bytes of a row's state that are of the vocabulary's tokens."""
    return 5 * model.vocab_size + 4 * -(-model.vocab_size // 32)


def vocabulary_bytes(model: ModelConfig) -> int:
    """Return the bytes of a row that are of the vocabulary's tokens: its logits in a step, and its state."""
    return LOGITS_AT_ONCE * 4 * model.vocab_size + ROW_STATES_AT_ONCE * _token_states(model)


def least_snapshots(model: ModelConfig, scheduler: SchedulerConfig) -> int | None:
    """Return the snapshots of states, one for each row, or 0 if no prefixes are kept; None: the model has no states."""
    if not model.states:
        return None
    return scheduler.max_num_seqs if scheduler.prefix_caching else 0


def slack_bytes(memory: DeviceMemory) -> int:
    """Return the bytes that are left unplanned."""
    if memory.is_cpu:
        return min(CPU_SLACK, 7 * memory.free_bytes // 8)
    return max(LEAST_SLACK, int(SLACK_SHARE * memory.free_bytes))


def cache_bytes(model: ModelConfig, config: EngineConfig, memory: DeviceMemory) -> int:
    """Return the bytes of ``memory`` that the KV cache takes."""
    streaming = config.streaming
    if streaming is None:
        return blocks_bytes(model, config.cache)
    sizes = stream_sizes(model, config.cache.block_size, memory, keep_inputs=streaming.keep_inputs)
    return sizes.fixed(streaming.num_open) + config.cache.num_blocks * sizes.each


def sequence_bytes(model: ModelConfig, config: EngineConfig, num_tokens: int) -> int:
    """Return the most bytes that a sequence of ``num_tokens`` has while it decodes: its blocks and its states."""
    cache = config.cache
    held = [(part, part.kind.held_blocks(num_tokens, cache.block_size)) for part in kind_blocks(model, cache)]
    return model.state_bytes + sum(blocks * part.block_bytes for part, blocks in held)


def without_cache(
    model: ModelConfig,
    scheduler: SchedulerConfig,
    memory: DeviceMemory,
    *,
    block_size: int,
    max_logit_bias: int,
    params_bytes: int,
    temporary_bytes: int,
    num_kinds: int = 1,
    num_snapshots: int = 0,
) -> Allocation:
    """Return an engine's allocation without KV cache, staging and host memory."""
    rows = ROW_STATES_AT_ONCE * row_state_bytes(model, scheduler, block_size, max_logit_bias, num_kinds=num_kinds)
    states = (scheduler.max_num_seqs + num_snapshots) * model.state_bytes
    return Allocation(params_bytes, temporary_bytes, rows, slack_bytes(memory), states=states)


def allocation_of(
    model: ModelConfig, config: EngineConfig, memory: DeviceMemory, *, params_bytes: int, temporary_bytes: int
) -> Allocation:
    """Return the allocation of an engine of this configuration."""
    offload = config.offload
    allocation = without_cache(
        *(model, config.scheduler, memory),
        block_size=config.cache.block_size,
        max_logit_bias=config.max_logit_bias,
        params_bytes=params_bytes,
        temporary_bytes=temporary_bytes,
        num_kinds=len(config.cache.kinds(model)),
        num_snapshots=config.cache.num_snapshots or 0,
    )
    allocation = replace(allocation, cache=cache_bytes(model, config, memory))
    if offload is None:
        return allocation
    formats = kind_formats(model, config.cache)
    staging = staging_bytes(*[each.block_bytes for each in formats], state_bytes=model.state_bytes)
    return replace(allocation, staging=staging, host=offload.host_blocks * place_bytes(formats, offload.host_dtype))
