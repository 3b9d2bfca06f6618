"""Turn the output of a step into the events of its requests, in the engine's thread. Host only, no jax."""

from dataclasses import dataclass, field
from itertools import accumulate
from typing import override

import numpy as np

from jaxgen.core.pooling import Pool
from jaxgen.core.request import Alternatives, TokenEvent, TokenLogprobs
from jaxgen.core.sequence import Chunk, Sequence
from jaxgen.core.step_plan import Outcome, StepPlan
from jaxgen.engine.latency import LatencyMeter
from jaxgen.engine.observer import Observer
from jaxgen.runner.interface import LogprobArrays, StepArrays


@dataclass(frozen=True)
class _HostLogprobs:
    chosen: np.ndarray
    ranks: np.ndarray
    top_tokens: np.ndarray
    top_values: np.ndarray

    @classmethod
    def fetch(cls, logprobs: LogprobArrays) -> "_HostLogprobs":
        arrays = (logprobs.chosen, logprobs.ranks, logprobs.top_tokens, logprobs.top_values)
        return cls(*map(np.asarray, arrays))

    def entry(self, row: int, token: int, alternatives: int) -> TokenLogprobs:
        top = Alternatives(
            self.top_tokens[row, :alternatives].astype(np.int32).tobytes(),
            self.top_values[row, :alternatives].astype(np.float64).tobytes(),
        )
        return TokenLogprobs(token, float(self.chosen[row]), top, int(self.ranks[row]))


@dataclass
class OutputProcessor(Observer):
    """Makes the events of requests. Results of prompt tokens are collected over chunks, for the first event."""

    latencies: LatencyMeter
    _prompt: dict[str, list[TokenLogprobs | None]] = field(default_factory=dict)
    _pools: dict[str, Pool] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)
    _logprobs: _HostLogprobs | None = None

    def fetch(self, plan: StepPlan, output: StepArrays) -> None:
        """Fetch from the device the log-probabilities and hidden states that the plan's requests ask for."""
        wants = [chunk for chunk in plan.chunks if chunk.samples and chunk.sequence.params.logprobs is not None]
        self._logprobs = _HostLogprobs.fetch(output.logprobs) if wants else None
        starts = accumulate([chunk.length for chunk in plan.chunks], initial=0)
        wanting = [
            (chunk, start) for chunk, start in zip(plan.chunks, starts, strict=False) if self._wants_prompt(chunk)
        ]
        scored = [(chunk, start) for chunk, start in wanting if chunk.sequence.params.prompt_logprobs is not None]
        if scored:
            logprobs = _HostLogprobs.fetch(output.prompt_logprobs)
            for chunk, start in scored:
                self._collect(chunk, start, logprobs)
        pooled = [(chunk, start) for chunk, start in wanting if chunk.sequence.request.pooling is not None]
        if pooled:
            hidden = np.asarray(output.hidden)
            for chunk, start in pooled:
                self._pool(chunk, hidden[start : start + chunk.length])

    def make(self, outcome: Outcome, now: float) -> TokenEvent:
        """Return the event of one outcome of the plan fetched last. ``now``: when it was read, by the steps' clock."""
        sequence = outcome.sequence
        params, request_id = sequence.params, sequence.request_id
        logprobs = None
        if self._logprobs is not None and outcome.token is not None and params.logprobs is not None:
            logprobs = self._logprobs.entry(outcome.index, outcome.token, params.logprobs)
        first = request_id not in self._told
        self._told.add(request_id)
        prompt, pool = self._prompt.pop(request_id, None), self._pools.pop(request_id, None)
        latency = None
        if first or outcome.finish_reason is not None or sequence.request.latency:
            latency = self.latencies.latency_of(sequence, now)
        return TokenEvent(
            request_id,
            outcome.token,
            logprobs,
            None if prompt is None else tuple(prompt),
            outcome.finish_reason,
            embedding=None if pool is None else pool.result(),
            cached_tokens=sequence.blocks.num_cached if first else None,
            latency=latency,
        )

    @override
    def ended(self, sequence: Sequence, reason: str) -> None:
        self._prompt.pop(sequence.request_id, None)
        self._pools.pop(sequence.request_id, None)
        self._told.discard(sequence.request_id)

    def _wants_prompt(self, chunk: Chunk) -> bool:
        sequence = chunk.sequence
        return (
            sequence.request.wants_every_token
            and sequence.finish_reason is None
            and chunk.start < sequence.num_prompt
            and sequence.request_id not in self._told
        )

    def _pool(self, chunk: Chunk, hidden: np.ndarray) -> None:
        request = chunk.sequence.request
        if chunk.start == 0 and request.pooling is not None:  # again after a preemption, as below
            self._pools[request.request_id] = Pool(request.pooling)
        self._pools[request.request_id].add(hidden)

    def _collect(self, chunk: Chunk, at: int, logprobs: _HostLogprobs) -> None:
        sequence = chunk.sequence
        if chunk.start == 0:  # also after a preemption in mid-prompt: the prompt is computed again
            self._prompt[sequence.request_id] = [None]
        entries = self._prompt[sequence.request_id]
        for position in range(chunk.start + 1, min(chunk.end + 1, sequence.num_prompt)):
            row = at + position - 1 - chunk.start
            entries.append(logprobs.entry(row, sequence.tokens[position], sequence.params.prompt_logprobs or 0))
