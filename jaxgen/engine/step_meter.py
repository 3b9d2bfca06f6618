"""Count what steps do and how long they take, in the engine's thread, and tell it for metrics. Host only, no jax."""

from collections.abc import Callable
from typing import override

from jaxgen.cache.block_pool import BlockPool
from jaxgen.core.cache_kind import kind_name
from jaxgen.core.config import EngineConfig
from jaxgen.core.sequence import Chunk
from jaxgen.core.stats import EngineStats, KindStats, SnapshotStats
from jaxgen.core.step_plan import StepPlan
from jaxgen.engine.block_events import NoBlockEvents
from jaxgen.engine.counters import Counters
from jaxgen.engine.observer import MeasuredStep, Observer
from jaxgen.engine.offloading import Offloading
from jaxgen.runner.interface import Runner
from jaxgen.scheduling.pace import StepPace
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.scheduling.step_time import StepTimeEstimator


class StepMeter(Observer):
    """The counters of an engine, and what learns from the time of each step to predict others."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        step_time: StepTimeEstimator,
        offload: Offloading,
        num_compilations: Callable[[], int],
    ) -> None:
        """``num_compilations``: of the process. They are counted from now on, since the engine should need no more."""
        self.counters = Counters()
        self._num_compilations = num_compilations
        self._compilations_at_ready = num_compilations()
        self._config = config
        self._runner = runner
        self._step_time = step_time
        self._offload = offload

    def measure(self, plan: StepPlan, began: float, ended: float, *, projected: int) -> MeasuredStep:
        """Return what is known of a step that was read, see MeasuredStep. It is not counted yet."""
        narrow = self._runner.uses_narrow(plan)
        return MeasuredStep(
            self.counters.steps + 1,
            plan,
            tuple([chunk for chunk in plan.chunks if _is_piece(chunk)]),
            began,
            ended,
            self._step_time.model.seconds(plan.num_tokens, plan.num_positions, plan.num_contexts, narrow=narrow),
            (self._config.narrow_width if narrow else None) or self._config.scheduler.token_budget,
            narrow,
            projected,
        )

    @override
    def read(self, step: MeasuredStep) -> None:
        """Count a step, and learn from its time."""
        counters, plan = self.counters, step.plan
        counters.steps += 1
        counters.narrow_steps += step.narrow
        counters.step_seconds += step.seconds
        counters.step_tokens += step.width
        counters.padded_tokens += step.width - plan.num_tokens
        for chunk in step.pieces:
            counters.prompt_tokens += max(0, min(chunk.end, chunk.sequence.num_prompt) - chunk.start)
        if not step.projected:
            self._step_time.observe(step.sample, narrow=step.narrow)
        elif not step.narrow:  # seconds of a projection are not the step's: they would have requests refused
            self._offload.observe_projection(step.sample, step.projected)

    def host_blocks(self) -> int:
        """Return how many blocks of the KV cache are in host memory now."""
        streamed = self._runner.offload_stats()
        return self._offload.host_blocks if streamed is None else streamed.host_blocks

    def stats(self, scheduler: Scheduler, block_events: NoBlockEvents) -> EngineStats:
        """Return a snapshot for metrics."""
        runner, step_time, offload, limits = self._runner, self._step_time, self._offload, self._config.scheduler
        running, ahead = scheduler.num_running, scheduler.waiting_tokens
        return EngineStats(
            kernels=runner.kernels.name,
            kernels_reason=runner.kernels.reason,
            kernel_choices=runner.kernels.choices,
            num_running=running + scheduler.num_ending,
            num_waiting=scheduler.num_waiting,
            block_size=self._config.cache.block_size,
            blocks_total=scheduler.pool.num_blocks,
            blocks_free=scheduler.pool.num_free,
            blocks_cached=scheduler.pool.num_cached,
            kinds=self._kinds(scheduler),
            prefix_queries=scheduler.counters.prefix_queries,
            prefix_hits=scheduler.counters.prefix_hits,
            preemptions=scheduler.preemptions,
            leaks=scheduler.counters.leaks,
            compilations_after_ready=self._num_compilations() - self._compilations_at_ready,
            pace=StepPace(step_time.model, step_time.spread, running, limits.max_num_seqs, ahead),
            snapshots=self._snapshots(scheduler),
            speculation=scheduler.speculation,
            offload=offload.stats() or runner.offload_stats(),
            kv_tier=offload.kv_tier_stats(),
            kv_events=block_events.stats(),
            **vars(self.counters),
        )

    def _snapshots(self, scheduler: Scheduler) -> SnapshotStats | None:
        """Return the snapshots of states; None: the model has no states."""
        total, counters = self._config.cache.num_snapshots, scheduler.counters
        if total is None:
            return None
        return SnapshotStats(
            total=total,
            held=scheduler.num_snapshots,
            taken=counters.snapshots_taken,
            evicted=counters.snapshots_evicted,
            recomputed_tokens=counters.state_recomputed_tokens,
        )

    def _kinds(self, scheduler: Scheduler) -> tuple[KindStats, ...]:
        """Return the blocks of each kind of cache; nothing if there is one."""
        windows = self._config.cache.windows
        if not windows:
            return ()
        names = [kind_name(window) for window in (None, *windows)]
        return tuple([_counted(*each) for each in zip(names, scheduler.pools, strict=True)])


def _counted(name: str, pool: BlockPool) -> KindStats:
    return KindStats(name=name, blocks_total=pool.num_blocks, blocks_free=pool.num_free, blocks_cached=pool.num_cached)


def _is_piece(chunk: Chunk) -> bool:
    """Whether a chunk is a piece of a prompt, or of what is computed again: a decode with forced tokens is neither."""
    again = chunk.num_known > 1 and chunk.sequence.standing.num_preemptions > 0
    return again or chunk.start < chunk.sequence.num_given
