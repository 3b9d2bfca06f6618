"""Configuration in frozen dataclasses. Host only, no jax.

``EngineOptions`` holds the user's settings, where None leaves the choice to the engine. ``EngineConfig`` holds the
settings that the engine has resolved at start; they do not change after that.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from jaxgen.core.cache_kind import CacheKind
from jaxgen.core.errors import ConfigError, NoRoomError
from jaxgen.core.host_dtype import HostDType
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.speculation import SpeculationConfig
from jaxgen.core.tier_address import TierAddress

KernelChoice = Literal["auto", "xla", "prove", "unproven"]
"""auto: the fastest kernels that are proven correct. xla: XLA's kernels. prove: as auto, but GPU kernels are proven
again. unproven: GPU kernels without a proof."""
KERNEL_CHOICES: tuple[KernelChoice, ...] = ("auto", "xla", "prove", "unproven")
LoadFormat = Literal["auto", "dummy"]
"""Where weights come from: the model's files, or random numbers in their place, which need no file."""
LOAD_FORMATS: tuple[LoadFormat, ...] = ("auto", "dummy")

LEAST_MODEL_LEN = 2
"""Tokens of the shortest sequence that generates: one of the prompt and one of the answer."""
DEFAULT_MAX_LOGIT_BIAS = 300
"""Default of ``max_logit_bias``, for the engine and for servers of it."""

OffloadPolicy = Literal["plan", "transfer", "recompute"]
OFFLOAD_POLICIES: tuple[OffloadPolicy, ...] = ("plan", "transfer", "recompute")
KVResidency = Literal["device", "host", "auto"]
KV_RESIDENCIES: tuple[KVResidency, ...] = ("device", "host", "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubOptions:
    """The revision of a hub repository to load, and its directory. None: its main branch, and the hub's cache."""

    revision: str | None = None
    download_dir: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Settings of the user, one field per flag of ``jaxgen serve``. None: decided from the model and the device."""

    max_model_len: int | None = None
    token_budget: int | None = None
    max_num_seqs: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    prefix_caching: bool = True
    gpu_memory_utilization: float = 0.9
    seed: int | None = None
    max_logit_bias: int = DEFAULT_MAX_LOGIT_BIAS
    """Most logit_bias entries of one request."""
    kv_offloading_size: float = 0.0
    """GiB of host memory for KV blocks that leave the device, or for all KV blocks; 0: none."""
    kv_offload_policy: OffloadPolicy = "plan"
    """How KV blocks are restored: plan: as the planner decides; transfer: all are copied from host memory; recompute:
    all are computed again."""
    kv_residency: KVResidency = "device"
    """Where the KV cache is: device, host, or auto: in host memory if the device is too small for a sequence."""
    kv_host_dtype: HostDType = "auto"
    kv_cache_dtype: str = "auto"
    """A KVDType or an alias of one: becomes the model's ``kv_dtype`` where the model is found."""
    kv_offload_inputs: bool = False
    """Keep layer inputs in addition to K and V, so that some KV blocks can be restored by projecting their layer
    inputs."""
    kv_tier: str | None = field(default=None, repr=False)
    """Directory or URL of a server that keeps KV blocks beyond the process, behind host memory; None: none does."""
    kv_tier_dir: Path | str | None = None
    """The same, of a directory."""
    kv_tier_password: str | None = field(default=None, repr=False)
    """Of a redis server, if ``kv_tier`` has none."""
    kv_tier_key: str | None = field(default=None, repr=False)
    """Secret by which values of ``kv_tier`` are authenticated; None: they are not."""
    kv_tier_size: float = 16.0
    """Most GiB of it."""
    kv_events_config: str | None = None
    """JSON of a KVEventsConfig: where events of KV blocks are published; None: nowhere."""
    speculative_config: str | None = None
    """JSON of a SpeculationConfig: how tokens are drafted; None: they are not."""
    background_tokens: int | None = None
    """Most tokens of background requests in a step that also has online requests."""
    single_shape: bool = False
    """Do not compile a second, narrow program for steps of decodes only."""
    tensor_parallel_size: int = 1
    """Devices between which the model is divided."""


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The blocked KV cache: ``num_blocks`` blocks of ``block_size`` tokens. ``keep_inputs``: blocks also have the layer
    inputs of their tokens.

    ``window_blocks``: blocks of each of the model's kinds of cache after the first; empty: all layers are of one kind.
    ``windows``: how many tokens back each of these kinds looks (``CacheKind.window``).
    ``num_snapshots``: copies of sequences' states that the prefix cache holds; None: the model has no states.
    """

    block_size: int
    num_blocks: int
    keep_inputs: bool = False
    window_blocks: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    num_snapshots: int | None = None

    def __post_init__(self) -> None:
        if len(self.windows) != len(self.window_blocks):
            raise ValueError(
                f"windows {self.windows} and window_blocks {self.window_blocks} must have one number for each kind of "
                "cache after the first"
            )

    @property
    def num_slots(self) -> int:
        return self.block_size * self.num_blocks

    @property
    def blocks_of_kinds(self) -> tuple[int, ...]:
        """The number of blocks of each kind of cache."""
        return (self.num_blocks, *self.window_blocks)

    def kinds(self, model: ModelConfig) -> tuple[CacheKind, ...]:
        """Return the kinds of cache that the model is served with."""
        return model.kinds_in(len(self.blocks_of_kinds))


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Bounds of a step: ``token_budget`` tokens of at most ``max_num_seqs`` sequences of ``max_model_len`` tokens.

    ``prefix_caching``: K and V of full blocks are kept, and later requests with the same prefix use them again.
    ``background_tokens``: most tokens of background requests in a step that also has online requests. None: all tokens
    that online requests leave. 0: none, and also none for a while after the last online request.
    """

    token_budget: int
    max_num_seqs: int
    max_model_len: int
    prefix_caching: bool = True
    background_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.background_tokens is not None and self.background_tokens < 0:
            raise ConfigError(f"--background-tokens must be 0 or more, not {self.background_tokens}")
        if not 1 <= self.max_num_seqs <= self.token_budget:
            raise ConfigError(
                f"--max-num-seqs {self.max_num_seqs} must be between 1 and --token-budget {self.token_budget}: "
                "every running sequence gets a token in every step"
            )


@dataclass(frozen=True, slots=True)
class OffloadConfig:
    """Host memory behind the KV cache of the device: ``host_blocks`` blocks.

    With several kinds of cache these are places, of which a block of each kind takes a whole number.
    ``tier``: a KV tier behind it, of at most ``tier_bytes``, whose values are authenticated with ``tier_key``, unless
    that is empty.
    """

    host_blocks: int
    policy: OffloadPolicy = "plan"
    host_dtype: HostDType = "auto"
    tier: TierAddress | None = None
    tier_bytes: int = 0
    tier_key: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """A KV cache in host memory: each step copies the blocks that it reads to the device, layer by layer.

    ``num_open``: blocks that are on the device in all layers, because steps write to them or they are being saved.
    ``group``: blocks of a layer that are copied together. ``keep_inputs``: host memory also has the layer inputs, which
    can be projected to K and V.
    """

    num_open: int
    group: int
    keep_inputs: bool = False
    policy: OffloadPolicy = "transfer"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The engine's resolved configuration. At most one of ``offload`` and ``streaming`` is set."""

    cache: CacheConfig
    scheduler: SchedulerConfig
    seed: int | None
    max_logit_bias: int
    narrow_width: int | None = None
    """Tokens of the narrow program, for steps of decodes only; None: there is no narrow program."""
    run_ahead: bool = True
    """Whether a step is dispatched before the one before it is done, on devices that can."""
    offload: OffloadConfig | None = None
    streaming: StreamConfig | None = None
    """None: the cache is on the device."""
    speculation: SpeculationConfig | None = None
    """None: there are no drafts."""

    def __post_init__(self) -> None:
        if self.scheduler.max_model_len < LEAST_MODEL_LEN:
            raise ConfigError(
                f"a sequence has a token of the prompt and one of the answer, but --num-blocks {self.cache.num_blocks} "
                f"of --block-size {self.cache.block_size} leave it {self.scheduler.max_model_len}: use a larger one"
            )
        need = -(-self.scheduler.max_model_len // self.cache.block_size)
        if self.cache.num_blocks < need:
            raise NoRoomError(
                f"--num-blocks {self.cache.num_blocks} cannot hold one sequence of --max-model-len "
                f"{self.scheduler.max_model_len}: use --num-blocks {need} or more, or --max-model-len "
                f"{self.cache.num_slots} or less"
            )
