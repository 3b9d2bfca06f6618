"""Measure where the time of requests goes, from the times of steps. Host only, no jax, no clock.

A request's time is split at the start of its first step and at its first token. Counts over its steps are differences
of the engine's totals, so requests that do not ask for latencies cost nothing per token.
"""

from dataclasses import dataclass, field

from jaxgen.core.request import Latency
from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import StepPlan


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
class LatencyMeter:
    """Collects times of every request and every step; times are readings of one clock, in seconds."""

    _records: dict[str, _Record] = field(default_factory=dict)
    _steps: int = 0
    _padded: int = 0
    _width: int = 0

    def arrive(self, request_id: str, now: float) -> None:
        self._records[request_id] = _Record(now)

    def admit(self, plan: StepPlan, now: float) -> None:
        """Note that the plan's admitted sequences have left the queue."""
        for sequence in plan.admitted:
            record = self._records.get(sequence.request_id)
            if record is not None and record.began is None:  # a preempted sequence began earlier
                record.began = now
                record.steps_before, record.padded_before = self._steps, self._padded
                record.width_before = self._width

    def count(self, plan: StepPlan, began: float, width: int) -> None:
        """Count a step that has ended: it began at ``began`` and had ``width`` tokens, including padding."""
        self.admit(plan, began)
        self._steps += 1
        self._padded += width - plan.num_tokens
        self._width += width

    def count_prompt_chunk(self, request_id: str) -> None:
        """Count a chunk of a request's prompt that a step has computed."""
        record = self._records.get(request_id)
        if record is not None:
            record.prompt_chunks += 1

    def read(self, sequence: Sequence, now: float) -> Latency:
        """Return the latency of a sequence's request at ``now``, when a token or the end of it was read."""
        record = self._records[sequence.request_id]
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
            preemptions=sequence.standing.num_preemptions,
        )

    def forget(self, request_id: str) -> None:
        """Drop the record of a request that has ended."""
        self._records.pop(request_id, None)
