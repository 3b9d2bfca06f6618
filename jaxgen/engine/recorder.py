"""Write the engine's journal: every step, and what happens to each request. Host only, no jax."""

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from jaxgen.core.config import EngineConfig
from jaxgen.core.request import TokenEvent
from jaxgen.core.sequence import Chunk, Restore, Sequence
from jaxgen.core.step_plan import Outcome, StepPlan
from jaxgen.journal import Journal, LiveRequest, StepRecord
from jaxgen.scheduling.scheduler import Scheduler

BACKGROUND = "background"
"""The class by which requests of the background are named."""


class StepTimings(NamedTuple):
    """Measurements of a step. ``pieces``: its chunks of prompts."""

    number: int
    seconds: float
    predicted: float
    width: int
    pieces: list[Chunk]


class Recorder:
    """Appends to a journal from the engine's thread: some microseconds a step, and nothing is encoded."""

    def __init__(
        self, config: EngineConfig, scheduler: Scheduler, host_blocks: Callable[[], int], *, skips_padding: bool
    ) -> None:
        """``host_blocks``: how many blocks are in host memory now. ``skips_padding``: as in ``Journal``."""
        limits = config.scheduler
        self.journal = Journal(limits.token_budget, limits.max_num_seqs, config.cache.block_size, skips_padding)
        self._scheduler = scheduler
        self._host_blocks = host_blocks

    def queued(self, sequence: Sequence) -> None:
        """Note a request that was accepted."""
        request, number = sequence.request, sequence.arrival
        service = BACKGROUND if request.background else request.service.name
        live = LiveRequest(number, request.request_id, request.tenant, service)
        self.journal.live[number] = live
        self.journal.arrivals.append(live)
        self._note(sequence, "queued", service, sequence.num_prompt)

    def planned(self, plan: StepPlan) -> None:
        """Note who lost row and blocks when the plan was made, and who begins with it."""
        for sequence in plan.preempted:
            self._set_running(sequence, running=False)
            self._note(sequence, "preempted")
        if plan.admitted:  # few steps
            from_host = {restore.sequence: restore.end - restore.start for restore in plan.restores}
            starts = {chunk.sequence: chunk.start for chunk in plan.chunks}
            for sequence in plan.admitted:
                self._set_running(sequence, running=True)
                found = starts.get(sequence, sequence.num_computed)
                self._note(sequence, "begun", found, from_host.get(sequence, 0))

    def restored(self, restore: Restore, *, whole: bool) -> None:
        """Note the end of copies for a request that still waits for them; not ``whole``: nothing came."""
        if restore.is_under_way:
            self._note(restore.sequence, "restored", restore.end - restore.start if whole else 0)

    def read(
        self, plan: StepPlan, step: StepTimings, outcomes: Iterable[Outcome], events: Iterable[TokenEvent]
    ) -> None:
        """Note a step whose output was read, after it was completed. ``events``: one of each outcome."""
        now, journal, scheduler = time.time(), self.journal, self._scheduler
        for chunk in step.pieces:
            number = chunk.sequence.arrival
            if number in journal.live:  # not ended before
                journal.events.append((now, number, "chunk", chunk.start, chunk.length))
        for outcome, event in zip(outcomes, events, strict=True):
            if event.cached_tokens is not None and event.token is not None:
                journal.events.append((now, outcome.sequence.arrival, "first"))
            if event.finish_reason is not None:
                self.ended(outcome.sequence, event.finish_reason)
        prompts, cached = sum([chunk.length for chunk in step.pieces]), scheduler.pool.num_cached
        journal.steps.append(
            StepRecord(
                step.number,
                now,
                step.seconds,
                step.predicted,
                step.width,
                plan.num_tokens - prompts,
                prompts,
                scheduler.num_running + scheduler.num_ending,
                scheduler.num_waiting,
                scheduler.pool.num_free - cached,
                cached,
                self._host_blocks(),
            )
        )

    def ended(self, sequence: Sequence, reason: str) -> None:
        """Note the end of a request, once."""
        if self.journal.live.pop(sequence.arrival, None) is not None:
            self._note(sequence, "ended", str(reason), sequence.num_generated)

    def _set_running(self, sequence: Sequence, *, running: bool) -> None:
        live = self.journal.live.get(sequence.arrival)
        if live is not None:
            live.running = running

    def _note(self, sequence: Sequence, kind: str, *values: int | str) -> None:
        self.journal.events.append((time.time(), sequence.arrival, kind, *values))
