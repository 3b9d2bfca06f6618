"""Count what steps do and how long they take."""

from jaxgen.core.config import EngineConfig
from jaxgen.core.sequence import Chunk
from jaxgen.core.step_plan import StepPlan
from jaxgen.engine.counters import Counters
from jaxgen.engine.latency import LatencyMeter
from jaxgen.engine.recorder import StepTimings
from jaxgen.offload.build import Offload
from jaxgen.runner.interface import Runner
from jaxgen.scheduling.cost_model import StepSample
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
        self.counters = Counters()
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


def _is_piece(chunk: Chunk) -> bool:
    """Whether a chunk is a piece of a prompt, or of what is computed again: a decode with forced tokens is neither."""
    again = chunk.length > 1 and chunk.sequence.num_preemptions > 0
    return again or chunk.start < chunk.sequence.num_prompt
