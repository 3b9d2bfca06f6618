"""Where the time of requests goes, worked out from the times of steps. Host only, no jax, no clock.

A request's time is told apart at the start of its first step and at its first token; what happened between its steps is
the difference of the engine's totals, so nothing is done per token for requests that do not ask.
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
    """Told of every request and every step; times are readings of one clock, seconds."""

    _records: dict[str, _Record] = field(default_factory=dict)
    _steps: int = 0
    _padded: int = 0
    _width: int = 0

    def arrive(self, request_id: str, now: float) -> None:
        self._records[request_id] = _Record(now)

    def admit(self, plan: StepPlan, now: float) -> None:
        """The plan's admitted sequences are no longer in the queue."""
        for sequence in plan.admitted:
            record = self._records.get(sequence.request_id)
            if record is not None and record.began is None:  # one that was preempted began earlier
                record.began = now
                record.steps_before, record.padded_before = self._steps, self._padded
                record.width_before = self._width

    def count(self, plan: StepPlan, began: float, width: int) -> None:
        """A step of ``width`` tokens, padding included, began then and is over."""
        self.admit(plan, began)
        self._steps += 1
        self._padded += width - plan.num_tokens
        self._width += width

    def count_prompt_chunk(self, request_id: str) -> None:
        """A step has computed a piece of its prompt."""
        record = self._records.get(request_id)
        if record is not None:
            record.prompt_chunks += 1

    def read(self, sequence: Sequence, now: float) -> Latency:
        """Its request's so far; a token of it came at ``now``, or its end."""
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
            preemptions=sequence.num_preemptions,
        )

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._records.pop(request_id, None)
