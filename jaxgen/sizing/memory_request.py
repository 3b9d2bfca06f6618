"""The options of an engine together with the memory of its device. Host only, no jax."""

from dataclasses import dataclass, replace

from jaxgen.core.config import CacheConfig, EngineConfig, EngineOptions, OffloadConfig, SchedulerConfig, StreamConfig
from jaxgen.core.errors import NoRoomError
from jaxgen.core.model_config import ModelConfig
from jaxgen.sizing.allocation import Allocation, estimate_temporaries, least_snapshots, without_cache
from jaxgen.sizing.device_memory import GIB, DeviceMemory
from jaxgen.sizing.speculation import speculation_of
from jaxgen.sizing.token_budget import CPU_NARROW, GPU_NARROW


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """Requested options, and the memory to meet them with.

    ``compiled_temporaries``: bytes, of the compiled step; None: they are estimated. ``dequantised_bytes``: numbers that
    a step makes of codes at a time, on top of the estimate.
    """

    options: EngineOptions
    model: ModelConfig
    memory: DeviceMemory
    scheduler: SchedulerConfig
    block_size: int
    params_bytes: int
    compiled_temporaries: int | None
    dequantised_bytes: int

    @property
    def without_cache(self) -> Allocation:
        """The engine's allocation without a KV cache."""
        temporaries = self.compiled_temporaries
        if temporaries is None:
            temporaries = estimate_temporaries(self.model, self.scheduler) + self.dequantised_bytes
        return without_cache(
            *(self.model, self.scheduler, self.memory),
            block_size=self.block_size,
            max_logit_bias=self.options.max_logit_bias,
            params_bytes=self.params_bytes,
            temporary_bytes=temporaries,
            num_snapshots=self.least_snapshots or 0,
        )

    @property
    def least_snapshots(self) -> int | None:
        """The fewest snapshots of states that an engine has; see ``allocation.least_snapshots``."""
        return least_snapshots(self.model, self.scheduler)

    @property
    def room(self) -> int:
        """Bytes left for the KV cache."""
        return self.without_cache.left(self.memory)

    def num_blocks(self, fitting: int, most: int) -> int:
        """Return the number of blocks of the options, else ``most``.

        NoRoomError if more than ``fitting`` were asked for, or if no block fits.
        """
        asked, memory = self.options.num_blocks, self.memory
        if asked is not None and asked > fitting:
            would = f"--num-blocks {fitting} would" if fitting > 0 else "not even one block does"
            raise NoRoomError(f"--num-blocks {asked} does not fit in {memory}: {would}")
        num_blocks = most if asked is None else asked
        if num_blocks < 1:
            remedy = "raise --gpu-memory-utilization, or lower --token-budget or --max-num-seqs"
            taken = self.without_cache
            rows = taken.rows + taken.states
            raise NoRoomError(
                f"the model's weights ({taken.weights / GIB:.2f} GiB), a step's temporaries "
                f"({taken.temporaries / GIB:.2f} GiB) and the state of its rows ({rows / GIB:.2f} GiB) leave no "
                f"room for a KV cache in {memory}: " + ("free some memory" if memory.is_cpu else remedy)
            )
        return num_blocks

    def config(
        self,
        num_blocks: int,
        *,
        keep_inputs: bool = False,
        window_blocks: tuple[int, ...] = (),
        more_snapshots: int = 0,
        offload: OffloadConfig | None = None,
        streaming: StreamConfig | None = None,
    ) -> EngineConfig:
        """Return the configuration, with the longest sequence that fits if the options leave its length open.

        ``keep_inputs``, ``window_blocks``: as in CacheConfig. ``more_snapshots``: in addition to one for each row.
        """
        options, scheduler = self.options, self.scheduler
        windows = tuple([kind.window or 0 for kind in self.model.cache_kinds[1:]]) if window_blocks else ()
        if options.max_model_len is None:
            longest = min(scheduler.max_model_len, num_blocks * self.block_size)
            scheduler = replace(scheduler, max_model_len=longest)
        snapshots = None if self.least_snapshots is None else self.least_snapshots + more_snapshots
        return EngineConfig(
            CacheConfig(
                *(self.block_size, num_blocks, keep_inputs),
                window_blocks=window_blocks,
                windows=windows,
                num_snapshots=snapshots,
            ),
            scheduler,
            options.seed,
            options.max_logit_bias,
            None if options.single_shape else narrow_width(scheduler, is_cpu=self.memory.is_cpu),
            # On a CPU the host's work takes cores from the step that runs at the same time, so running ahead gains
            # almost nothing. Threads that read tokens and pass them on would wait for a core, and new requests for two
            # steps.
            not self.memory.is_cpu,
            offload,
            streaming,
            speculation_of(options, self.model, scheduler, is_cpu=self.memory.is_cpu, streams=streaming is not None),
        )


def narrow_width(scheduler: SchedulerConfig, *, is_cpu: bool) -> int | None:
    """Return the tokens of the narrow program, or None if they are more than half of the token budget.

    One per row, up to a number of which more would not be hidden behind the reading of weights.
    """
    width = min(scheduler.max_num_seqs, CPU_NARROW if is_cpu else GPU_NARROW)
    return width if 2 * width <= scheduler.token_budget else None
