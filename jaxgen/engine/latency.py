"""Measure where the time of requests goes, from the times of steps, in the engine's thread. Host only, no jax.

A request's time is split at the start of its first step and at its first token. Counts over its steps are differences
of the engine's totals, so requests that do not ask for latencies cost nothing per token.
"""

from dataclasses import dataclass, field
from typing import override

from jaxgen.core.request import Latency
from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import StepPlan
from jaxgen.engine.observer import MeasuredStep, Observer


@dataclass(slots=True)
class _Record:
    arrived: float
    began: float | None = None
    first_token: float | None = None
    steps_before: int = 0
    padded_before: int = 0
    width_before: int = 0
    prompt_chunks: int = 0


@dataclass(slots=True)
class LatencyMeter(Observer):
    """Collects the times of every request and every step."""

    _records: dict[str, _Record] = field(default_factory=dict)
    _steps: int = 0
    _padded: int = 0
    _width: int = 0

    @override
    def queued(self, sequence: Sequence, now: float) -> None:
        self._records[sequence.request_id] = _Record(now)

    @override
    def planned(self, plan: StepPlan, now: float) -> None:
        """Note who has left the queue for copies alone; who left it for a step is noted when that is read."""
        if not plan.chunks:
            self._begin(plan, now)

    @override
    def read(self, step: MeasuredStep) -> None:
        """Count a step that has ended, and its chunks of prompts."""
        self._begin(step.plan, step.began)
        self._steps += 1
        self._padded += step.width - step.plan.num_tokens
        self._width += step.width
        for chunk in step.pieces:
            record = self._records.get(chunk.sequence.request_id)
            if record is not None and chunk.start < chunk.sequence.num_prompt:
                record.prompt_chunks += 1

    @override
    def ended(self, sequence: Sequence, reason: str) -> None:
        self._records.pop(sequence.request_id, None)

    def latency_of(self, sequence: Sequence, now: float) -> Latency:
        """Return the latency of a sequence's request at ``now``, when a token or the end of it was read."""
        record, standing = self._records[sequence.request_id], sequence.standing
        assert record.began is not None, "events come after a step"
        if record.first_token is None:
            record.first_token = now
        return Latency(
            queue_seconds=record.began - record.arrived,
            prompt_seconds=record.first_token - record.began,
            decode_seconds=now - record.first_token,
            prompt_chunks=record.prompt_chunks,
            steps=self._steps - record.steps_before,
            padding_share=(self._padded - record.padded_before) / (self._width - record.width_before),
            preemptions=standing.num_preemptions,
            accepted_length=1.0 + standing.num_accepted / max(1, standing.num_drafted_steps),
        )

    def _begin(self, plan: StepPlan, now: float) -> None:
        for sequence in plan.admitted:
            record = self._records.get(sequence.request_id)
            if record is not None and record.began is None:  # a preempted sequence began earlier
                record.began = now
                record.steps_before, record.padded_before = self._steps, self._padded
                record.width_before = self._width
