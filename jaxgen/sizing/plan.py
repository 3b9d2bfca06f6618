"""Say before anything is loaded what fits in a device's memory. Host only, no jax."""

from dataclasses import dataclass, replace

from jaxgen.cache.cache_format import KindBlocks, kind_blocks
from jaxgen.core.config import EngineConfig, EngineOptions, SchedulerConfig
from jaxgen.core.errors import NoRoomError
from jaxgen.core.model_config import ModelConfig
from jaxgen.sizing.allocation import (
    Allocation,
    allocation_of,
    estimate_temporaries,
    least_snapshots,
    sequence_bytes,
    without_cache,
)
from jaxgen.sizing.device_memory import DeviceMemory
from jaxgen.sizing.layerwise_sizes import stream_sizes
from jaxgen.sizing.memory import resolve
from jaxgen.sizing.step_bounds import DEFAULT_BLOCK_SIZE, scheduler_config
from jaxgen.sizing.token_budget import GPU_ROWS
from jaxgen.sizing.window_sizes import why_whole

SEQUENCE_TOKENS = (4096, 32768)
"""Lengths, in addition to the longest, of which a plan says what a sequence takes."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A model whose parameters have ``weights`` bytes, the options to serve it with, and a device.

    ``total_bytes``: all of an accelerator's memory, of which ``options.gpu_memory_utilization`` is used; of a CPU the
    free memory. ``host_bytes`` and ``container_bytes`` as in DeviceMemory. ``token_budget``: tokens of a step if the
    options do not name them. ``dequantised``: bytes of numbers that a step makes of codes at a time. ``most_rows``: of
    a step on a GPU by default.
    """

    options: EngineOptions
    model: ModelConfig
    weights: int
    platform: str
    total_bytes: int
    host_bytes: int | None
    token_budget: int
    dequantised: int = 0
    container_bytes: int | None = None
    most_rows: int = GPU_ROWS

    @property
    def memory(self) -> DeviceMemory:
        """The memory that an engine would find."""
        share = 1.0 if self.platform == "cpu" else self.options.gpu_memory_utilization
        return DeviceMemory(self.platform, int(self.total_bytes * share), self.host_bytes, self.container_bytes)

    @property
    def scheduler(self) -> SchedulerConfig:
        """The bounds of a step, before the cache is sized. Raises ConfigError."""
        room = self.memory.free_bytes - self.weights
        return scheduler_config(
            *(self.options, self.model, self.token_budget),
            is_cpu=self.memory.is_cpu,
            room=room,
            most_rows=self.most_rows,
        )

    @property
    def block_size(self) -> int:
        return self.options.block_size or DEFAULT_BLOCK_SIZE

    def resolve(self) -> EngineConfig:
        """Return the configuration that serving would choose. Raises ConfigError, NoRoomError if it does not fit."""
        return resolve(
            self.options,
            self.model,
            self.memory,
            token_budget=self.token_budget,
            params_bytes=self.weights,
            dequantised_bytes=self.dequantised,
            most_rows=self.most_rows,
        )

    def temporaries(self, scheduler: SchedulerConfig) -> int:
        """Return the estimated bytes of a step, without weights, rows and cache."""
        return estimate_temporaries(self.model, scheduler) + self.dequantised

    @property
    def without_cache(self) -> Allocation:
        """The engine's allocation without a KV cache. Raises ConfigError."""
        return without_cache(
            *(self.model, self.scheduler, self.memory),
            block_size=self.block_size,
            max_logit_bias=self.options.max_logit_bias,
            params_bytes=self.weights,
            temporary_bytes=self.temporaries(self.scheduler),
            num_snapshots=self.least_snapshots,
        )

    @property
    def least_snapshots(self) -> int:
        """Snapshots of states that an engine has, whatever memory is left."""
        return least_snapshots(self.model, self.scheduler) or 0

    def changed(self, **options: object) -> "PlanRequest":
        """Return the request with other options."""
        return replace(self, options=replace(self.options, **options))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Plan:
    """The allocation of an engine that is planned, and its bounds.

    ``allocation``: its temporaries are an estimate: the compiled program gives the number. ``host``: bytes of KV blocks
    in host memory. ``config``: None: it does not fit, for the reason ``problem``. ``kinds``: blocks of each kind of
    cache. ``num_snapshots``: snapshots of states. ``why_whole``: why windows free no blocks. ``sequences``: tokens of
    several sequences, and the bytes that each takes.
    """

    memory: DeviceMemory
    scheduler: SchedulerConfig
    allocation: Allocation
    host: int = 0
    config: EngineConfig | None = None
    problem: str = ""
    kinds: tuple[KindBlocks, ...] = ()
    num_snapshots: int = 0
    why_whole: str = ""
    sequences: tuple[tuple[int, int], ...] = ()

    @property
    def left(self) -> int:
        """Bytes of the device's memory that nothing takes; negative: the missing bytes."""
        return self.allocation.left(self.memory)

    @property
    def longest_at_once(self) -> int:
        """Sequences of the longest context that have their blocks at the same time."""
        if self.config is None:
            return 0
        cache, scheduler = self.config.cache, self.config.scheduler
        return min(scheduler.max_num_seqs, cache.num_blocks // -(-scheduler.max_model_len // cache.block_size))


def make_plan(request: PlanRequest) -> Plan:
    """Return what serving would allocate. Raises ConfigError for options that are invalid in any memory."""
    model, memory = request.model, request.memory
    try:
        config = request.resolve()
    except NoRoomError as error:
        least = request.least_snapshots
        return Plan(memory, request.scheduler, request.without_cache, problem=str(error), num_snapshots=least)
    allocation = allocation_of(
        model, config, memory, params_bytes=request.weights, temporary_bytes=request.temporaries(config.scheduler)
    )
    host = allocation.host
    if config.streaming is not None:
        sizes = stream_sizes(model, config.cache.block_size, memory, keep_inputs=config.streaming.keep_inputs)
        host = config.cache.num_blocks * sizes.host
    return Plan(
        *(memory, config.scheduler, allocation, host, config),
        kinds=kind_blocks(model, config.cache),
        num_snapshots=config.cache.num_snapshots or 0,
        why_whole=why_whole(request.options, model, config),
        sequences=_sequences(model, config),
    )


def _sequences(model: ModelConfig, config: EngineConfig) -> tuple[tuple[int, int], ...]:
    longest = config.scheduler.max_model_len
    lengths = [*[length for length in SEQUENCE_TOKENS if length < longest], longest]
    return tuple([(length, sequence_bytes(model, config, length)) for length in lengths])
