"""Say before anything is loaded what fits in a device's memory. Host only, no jax."""

from dataclasses import dataclass, replace

from jaxgen.cache.block_sizes import block_bytes, host_block_bytes
from jaxgen.core.config import EngineConfig, EngineOptions, ModelConfig, SchedulerConfig
from jaxgen.core.errors import NoRoomError
from jaxgen.offload.staging import staging_bytes
from jaxgen.sizing.layerwise import stream_sizes
from jaxgen.sizing.memory import DEFAULT_BLOCK_SIZE, cache_bytes, estimate_temporaries, resolve, scheduler_config
from jaxgen.sizing.memory_request import DeviceMemory


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A model whose parameters have ``weights`` bytes, the options to serve it with, and a device.

    ``total_bytes``: all of an accelerator's memory, of which ``options.gpu_memory_utilization`` is used; of a CPU the
    free memory. ``host_bytes``: all memory of the machine; None: unknown. ``token_budget``: tokens of a step if the
    options do not name them. ``dequantised``: bytes of numbers that a step makes of codes at a time.
    """

    options: EngineOptions
    model: ModelConfig
    weights: int
    platform: str
    total_bytes: int
    host_bytes: int | None
    token_budget: int
    dequantised: int = 0

    @property
    def memory(self) -> DeviceMemory:
        """The memory that an engine would find."""
        share = 1.0 if self.platform == "cpu" else self.options.gpu_memory_utilization
        return DeviceMemory(self.platform, int(self.total_bytes * share), self.host_bytes)

    @property
    def scheduler(self) -> SchedulerConfig:
        """The bounds of a step, without regard to memory. Raises ConfigError."""
        return scheduler_config(self.options, self.model, self.token_budget, is_cpu=self.memory.is_cpu)

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
        )

    @property
    def temporaries(self) -> int:
        """Bytes of a step beside weights and cache, as estimated. Raises ConfigError."""
        return estimate_temporaries(self.model, self.scheduler) + self.dequantised

    def changed(self, **options: object) -> "PlanRequest":
        """Return the request with other options."""
        return replace(self, options=replace(self.options, **options))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Plan:
    """What an engine would allocate, in bytes, and its bounds.

    ``temporaries``: of a step, an estimate: the compiled program gives the number. ``cache``: on the device.
    ``staging``: on the device, for copies to and from the host. ``host``: KV blocks in host memory. ``config``: None:
    it does not fit, for the reason ``problem``.
    """

    memory: DeviceMemory
    scheduler: SchedulerConfig
    weights: int
    temporaries: int
    cache: int = 0
    staging: int = 0
    host: int = 0
    config: EngineConfig | None = None
    problem: str = ""

    @property
    def left(self) -> int:
        """Bytes of the device's memory that nothing takes; negative: those that are missing."""
        used = self.weights + self.temporaries + self.cache + self.staging
        shared = self.memory.is_cpu and self.config is not None and self.config.offload is not None
        return self.memory.free_bytes - used - (self.host if shared else 0)

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
        return Plan(memory, request.scheduler, request.weights, request.temporaries, problem=str(error))
    plan = Plan(memory, config.scheduler, request.weights, request.temporaries, cache_bytes(model, config, memory))
    size, blocks, inputs = config.cache.block_size, config.cache.num_blocks, config.cache.keep_inputs
    if config.streaming is not None:
        sizes = stream_sizes(model, size, memory, keep_inputs=config.streaming.keep_inputs)
        plan = replace(plan, host=blocks * sizes.host)
    if config.offload is not None:
        one = host_block_bytes(model, size, config.offload.host_dtype, inputs=inputs)
        staging = staging_bytes(block_bytes(model, size, inputs=inputs))
        plan = replace(plan, host=config.offload.host_blocks * one, staging=staging)
    return replace(plan, config=config)
