"""Write the engine's journal: every step, and what happens to each request.

Runs in the engine's thread; any thread may read the journal. Host only, no jax.
"""

import time
from collections import abc
from collections.abc import Callable
from typing import override

from jaxgen.core.config import EngineConfig
from jaxgen.core.request import TokenEvent
from jaxgen.core.sequence import Restore, Sequence
from jaxgen.core.step_plan import Outcome, StepPlan
from jaxgen.engine.observer import MeasuredStep, Observer
from jaxgen.journal import Journal, LiveRequest, StepRecord
from jaxgen.scheduling.scheduler import Scheduler

BACKGROUND = "background"
"""The class by which requests of the background are named."""


class Recorder(Observer):
    """Appends to a journal: some microseconds a step, and nothing is encoded."""

    def __init__(
        self, config: EngineConfig, scheduler: Scheduler, host_blocks: Callable[[], int], *, skips_padding: bool
    ) -> None:
        """``host_blocks``: how many blocks are in host memory now. ``skips_padding``: as in ``Journal``."""
        limits = config.scheduler
        self.journal = Journal(limits.token_budget, limits.max_num_seqs, config.cache.block_size, skips_padding)
        self._scheduler = scheduler
        self._host_blocks = host_blocks

    @override
    def queued(self, sequence: Sequence, now: float) -> None:
        request, number = sequence.request, sequence.arrival
        service = BACKGROUND if request.background else request.service.name
        live = LiveRequest(number, request.request_id, request.tenant, service)
        self.journal.live[number] = live
        self.journal.arrivals.append(live)
        self._note(sequence, "queued", service, sequence.num_prompt)

    @override
    def planned(self, plan: StepPlan, now: float) -> None:
        """Note who lost row and blocks when the plan was made, and who begins with it."""
        for sequence in plan.preempted:
            self._set_running(sequence, running=False)
            self._note(sequence, "preempted")
        if plan.admitted:  # few steps
            from_host = {restore.sequence: restore.end - restore.start for restore in plan.restores}
            starts = {chunk.sequence: chunk.start for chunk in plan.chunks}
            for sequence in plan.admitted:
                self._set_running(sequence, running=True)
                reused = starts.get(sequence, sequence.num_computed)
                self._note(sequence, "begun", reused, from_host.get(sequence, 0))

    @override
    def restored(self, restore: Restore, *, whole: bool) -> None:
        """Note the end of copies for a request that still waits for them; not ``whole``: nothing came."""
        if restore.is_under_way:
            self._note(restore.sequence, "restored", restore.end - restore.start if whole else 0)

    @override
    def completed(self, step: MeasuredStep, outcomes: abc.Sequence[Outcome], events: abc.Sequence[TokenEvent]) -> None:
        """Note a step, its chunks of prompts, and the first tokens and the ends that it brings: these before the step,
        so that who reads a step knows whose answers it ended."""
        now, journal, scheduler = time.time(), self.journal, self._scheduler
        for chunk in step.pieces:
            number = chunk.sequence.arrival
            if number in journal.live:  # not ended before
                journal.events.append((now, number, "chunk", chunk.start, chunk.num_known))
        for outcome, event in zip(outcomes, events, strict=True):
            if event.cached_tokens is not None and event.token is not None:
                journal.events.append((now, outcome.sequence.arrival, "first"))
            if outcome.finish_reason is not None:
                self.ended(outcome.sequence, outcome.finish_reason)
        prompts, cached = sum([chunk.num_known for chunk in step.pieces]), scheduler.pool.num_cached
        journal.steps.append(
            StepRecord(
                step.number,
                now,
                step.seconds,
                step.predicted,
                step.width,
                step.plan.num_tokens - prompts,
                prompts,
                scheduler.num_running + scheduler.num_ending,
                scheduler.num_waiting,
                scheduler.pool.num_free - cached,
                cached,
                self._host_blocks(),
            )
        )

    @override
    def ended(self, sequence: Sequence, reason: str) -> None:
        """Note the end of a request, of several calls the first."""
        if self.journal.live.pop(sequence.arrival, None) is not None:
            self._note(sequence, "ended", str(reason), sequence.num_generated)

    def _set_running(self, sequence: Sequence, *, running: bool) -> None:
        live = self.journal.live.get(sequence.arrival)
        if live is not None:
            live.running = running

    def _note(self, sequence: Sequence, kind: str, *values: int | str) -> None:
        self.journal.events.append((time.time(), sequence.arrival, kind, *values))
