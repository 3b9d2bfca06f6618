"""Count what steps do and how long they take, and tell it for metrics."""

from jaxgen.core.config import EngineConfig
from jaxgen.core.sequence import Chunk
from jaxgen.core.stats import EngineStats
from jaxgen.core.step_plan import StepPlan
from jaxgen.engine.block_events import BlockEvents
from jaxgen.engine.counters import Counters
from jaxgen.engine.latency import LatencyMeter
from jaxgen.engine.recorder import StepTimings
from jaxgen.offload.build import Offload
from jaxgen.runner.compilation import num_compilations
from jaxgen.runner.interface import Runner
from jaxgen.scheduling.cost_model import StepSample
from jaxgen.scheduling.pace import StepPace
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.scheduling.step_time import StepTimeEstimator


class StepMeter:
    """The counters of an engine, and what learns from the time of each step: its prediction and latencies."""

    def __init__(
        self,
        config: EngineConfig,
        device: Runner,
        step_time: StepTimeEstimator,
        latencies: LatencyMeter,
        offload: Offload | None,
    ) -> None:
        """Compilations are counted from now on, since the engine should need no more."""
        self.counters = Counters()
        self._compilations_at_ready = num_compilations()
        self._config = config
        self._device = device
        self._step_time = step_time
        self._latencies = latencies
        self._offload = offload

    def count(self, plan: StepPlan, began: float, ended: float, *, projected: int) -> StepTimings:
        """Count a step and return what was measured of it.

        ``began``: when it was dispatched, or when the step before it was read, if that was later. ``projected``: tokens
        that were projected right before the step.
        """
        counters, seconds = self.counters, ended - began
        narrow = self._device.uses_narrow(plan)
        width = (self._config.narrow_width if narrow else None) or self._config.scheduler.token_budget
        counters.steps += 1
        counters.narrow_steps += narrow
        counters.step_seconds += seconds
        counters.generation_tokens += plan.num_samples
        counters.step_tokens += width
        counters.padded_tokens += width - plan.num_tokens
        self._latencies.count(plan, began, width)
        sample = StepSample(plan.num_tokens, plan.num_positions, seconds, plan.num_contexts)
        predicted = self._step_time.model.seconds(sample.tokens, sample.positions, sample.contexts, narrow=narrow)
        if self._offload is None or not projected:
            self._step_time.observe(sample, narrow=narrow)
        elif not narrow:  # seconds of a projection are not the step's: they would have requests refused
            self._offload.meter.observe_projection(sample, projected)
        pieces = [chunk for chunk in plan.chunks if _is_piece(chunk)]
        for chunk in pieces:
            if chunk.start < chunk.sequence.num_prompt:
                counters.prompt_tokens += min(chunk.end, chunk.sequence.num_prompt) - chunk.start
                self._latencies.count_prompt_chunk(chunk.sequence.request_id)
        return StepTimings(counters.steps, seconds, predicted, width, pieces)

    def host_blocks(self) -> int:
        """Return how many blocks of the KV cache are in host memory now."""
        if self._offload is not None:
            return len(self._offload.tier.store)
        streamed = self._device.offload_stats()
        return 0 if streamed is None else streamed.host_blocks

    def stats(self, scheduler: Scheduler, block_events: BlockEvents | None) -> EngineStats:
        """Return a snapshot for metrics."""
        device, step_time, offload, limits = self._device, self._step_time, self._offload, self._config.scheduler
        running, ahead = scheduler.num_running, scheduler.waiting_tokens
        return EngineStats(
            kernels=device.kernels.name,
            kernels_reason=device.kernels.reason,
            num_running=running + scheduler.num_ending,
            num_waiting=scheduler.num_waiting,
            block_size=self._config.cache.block_size,
            blocks_total=scheduler.pool.num_blocks,
            blocks_free=scheduler.pool.num_free,
            blocks_cached=scheduler.pool.num_cached,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            preemptions=scheduler.preemptions,
            leaks=scheduler.leaks,
            compilations_after_ready=num_compilations() - self._compilations_at_ready,
            pace=StepPace(step_time.model, step_time.spread, running, limits.max_num_seqs, ahead),
            offload=device.offload_stats() if offload is None else offload.stats(),
            kv_tier=None if offload is None else offload.kv_tier_stats(),
            kv_events=None if block_events is None else block_events.stats(),
            **vars(self.counters),
        )


def _is_piece(chunk: Chunk) -> bool:
    """Whether a chunk is a piece of a prompt, or of what is computed again: a decode with forced tokens is neither."""
    again = chunk.length > 1 and chunk.sequence.standing.num_preemptions > 0
    return again or chunk.start < chunk.sequence.num_given
