"""The engine: its loop is plan, launch, read the last. Accelerators run a step while the next one is planned.

Runs in the thread that calls it: AsyncEngine's own, or a program's. Host only, no jax.
"""

import logging
import time
from collections.abc import Callable, Set
from dataclasses import dataclass, field

import numpy as np

from jaxgen.core.config import EngineConfig
from jaxgen.core.identity import UNKNOWN, Identity
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.quote import Quote
from jaxgen.core.request import FinishReason, Request, TokenEvent
from jaxgen.core.sequence import Sequence
from jaxgen.core.stats import EngineStats
from jaxgen.core.step_plan import Outcome, StepPlan
from jaxgen.engine.block_events import NO_EVENTS, NoBlockEvents
from jaxgen.engine.constraints import ConstraintFollower
from jaxgen.engine.intake import Intake
from jaxgen.engine.observer import MeasuredStep, Observers
from jaxgen.engine.offloading import NO_OFFLOAD, Offloading
from jaxgen.engine.outbox import Outbox
from jaxgen.engine.output_processor import OutputProcessor
from jaxgen.engine.recovery import recover
from jaxgen.engine.requests import Requests
from jaxgen.engine.step_meter import StepMeter
from jaxgen.journal import Journal
from jaxgen.runner.interface import Runner, StepArrays
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.text.constraint import Constraint

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""Most seconds that an engine writes blocks to its KV tier when it ends."""
MOST_WAIT = 0.02
"""Most seconds that a call of ``step`` waits for copies if it has no other work: new requests come between calls."""


NO_STEP = StepPlan(())


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A step that is dispatched and whose output is not read yet."""

    plan: StepPlan
    output: StepArrays
    dispatched: float
    projected: int
    """Tokens that were projected right before the step."""


@dataclass(eq=False)
class Engine:
    """Runs requests on one device. It has no thread of its own: the caller of ``step`` drives it.

    Its parts come finished: ``jaxgen.engine.start`` makes them.
    """

    model: ModelConfig
    config: EngineConfig
    scheduler: Scheduler
    runner: Runner
    intake: Intake
    follower: ConstraintFollower
    output: OutputProcessor
    meter: StepMeter
    observers: Observers
    """Who is told what happens: ``output`` and ``meter`` too."""
    journal: Journal
    offload: Offloading = NO_OFFLOAD
    block_events: NoBlockEvents = NO_EVENTS
    identity: Identity = UNKNOWN
    """What its bits depend on; empty where nobody asks."""
    clock: Callable[[], float] = time.perf_counter
    """Returns seconds."""
    _outbox: Outbox = field(default_factory=Outbox, init=False)
    _planned: StepPlan = field(default=NO_STEP, init=False)
    """The plan made last."""
    _in_flight: _InFlight | None = field(default=None, init=False)
    _last_read: float = field(default=0.0, init=False)
    _waited: float = field(default=0.0, init=False)
    """Seconds for which this call of ``step`` has waited."""

    def __post_init__(self) -> None:
        self._requests = Requests(self.scheduler, self.intake, self._outbox, self.observers, recover=self._fail)

    def add(self, request: Request, constraint: Constraint | None = None) -> None:
        """Accept a request; ``step`` returns its events. ``constraint``: which tokens it may have, if not all.

        Raises RequestRefusedError, which names field and limit, for a request that can never run. Raises ValueError if
        a request with its id has not ended. After any error the request is not accepted. Raises DeviceLostError as
        ``step`` does.
        """
        self._requests.add(request, constraint, self.clock())

    def quote(self, request: Request) -> Quote:
        """Predict the latencies that a request would have if it were added now. Nothing changes by it.

        Raises RequestRefusedError and WouldBeLateError as ``add`` does; grammars are not compiled for it.
        """
        return self._requests.quote(request, self.clock())

    def abort(self, request_id: str) -> bool:
        """Drop a request and free its row and blocks; return False if there is none. It gets no further event.

        Raises DeviceLostError as ``step`` does.
        """
        return self._requests.abort(request_id)

    @property
    def runs_ahead(self) -> bool:
        """Whether a step begins before the events of the one before it are known."""
        return self.config.run_ahead and self.runner.runs_ahead

    @property
    def has_work(self) -> bool:
        waits = not self._outbox.is_empty or self.block_events.pending
        return waits or self.scheduler.has_work or self.offload.has_saves

    @property
    def held_for(self) -> float:
        """Seconds for which all remaining work is held back because it is background work; else 0."""
        if not self._outbox.is_empty or self._in_flight is not None or self.offload.copies:
            return 0.0
        return self.scheduler.held_for(self.clock())

    def step(self) -> list[TokenEvent]:
        """Dispatch the next step, then wait for the one before it and return its events.

        So the device works while the host reads, and the events of a request's first step come from the second call.
        Without ``config.run_ahead``, or if the KV cache is streamed, they come from the first: it waits for the step
        that it dispatches. If anything raises, all running requests end with ERROR. Raises DeviceLostError if the
        device runs no steps any more.
        """
        before, self._in_flight, self._planned = self._in_flight, None, NO_STEP
        try:
            self._advance(before)
        except Exception as error:  # of a device or of the host: the engine must go on
            under_way = before.plan if before else NO_STEP
            description = under_way.describe() if before else "none"
            logger.exception("a step failed: %s; under way: %s", self._planned.describe(), description)
            self._fail(error, {chunk.sequence for chunk in under_way.chunks if chunk.samples})
        return self._outbox.take()

    def _advance(self, last: _InFlight | None) -> None:
        """Plan and launch the next step, and read the last one, or the same if nothing runs ahead."""
        started, self._waited = self.clock(), 0.0
        self._take_in_copies()
        plan = self._plan(started)
        if plan.chunks:
            step = self._launch(plan)
            last, self._in_flight = (last, step) if self.runs_ahead else (step, None)
        elif last is None:
            self._wait_for_copies()
            self._deliver([])
        if last is not None:
            self._read(last)
        if self._in_flight is None:
            self.scheduler.check_idle()
        self.meter.counters.host_seconds += self.clock() - started - self._waited

    def _take_in_copies(self) -> None:
        """Pass on which copies from host memory have ended."""
        for restore, whole in self.offload.poll():
            self.observers.restored(restore, whole=whole)
            self.scheduler.restored(restore, whole=whole)

    def _plan(self, now: float) -> StepPlan:
        """Return the plan of the next step, and start its copies."""
        plan = self._planned = self.scheduler.schedule(now)
        self.observers.planned(plan, now)
        self.offload.start(plan)
        if not plan.chunks:
            self.runner.load(plan)
        return plan

    def _launch(self, plan: StepPlan) -> _InFlight:
        """Dispatch a step. Waits for it if the runner does."""
        dispatched, projected = self.clock(), self.offload.projected
        output = self.runner.run(plan)
        if not self.runner.runs_ahead:
            self._waited += self.clock() - dispatched
        return _InFlight(plan, output, dispatched, projected)

    def _wait_for_copies(self) -> None:
        """Wait for copies, as there is nothing to compute."""
        if self.offload.busy:
            started = self.clock()
            self.offload.wait(MOST_WAIT)
            self._waited += self.clock() - started
            self.meter.counters.stalled_seconds += self.clock() - started

    def _read(self, step: _InFlight) -> None:
        """Wait for a step, read its output, and put the events of its tokens."""
        started, plan = self.clock(), step.plan
        step.output.tokens.block_until_ready()
        self._waited += self.clock() - started
        tokens = np.asarray(step.output.tokens)
        self.output.fetch(plan, step.output)
        now = self.clock()
        measured = self.meter.measure(plan, max(step.dispatched, self._last_read), now, projected=step.projected)
        self._last_read = now
        self.observers.read(measured)
        self._deliver(self.scheduler.complete(plan, tokens[: plan.num_samples].tolist()), measured)

    def _deliver(self, outcomes: list[Outcome], step: MeasuredStep | None = None) -> None:
        """Put the events of a step's tokens, and of tokens that follow these or earlier ones alone. None: no step."""
        forced, ends = self.follower.follow(outcomes, idle=step is None)
        outcomes += forced
        self.meter.counters.generation_tokens += sum([outcome.token is not None for outcome in outcomes])
        now = step.ended if step else self.clock()
        events = [self.output.make(outcome, now) for outcome in outcomes]
        if step is not None:
            self.observers.completed(step, outcomes, events)
        for outcome in outcomes:
            if outcome.finish_reason is not None:
                self.observers.ended(outcome.sequence, outcome.finish_reason)
        for end in ends:
            self._requests.drop(end.request_id, FinishReason.ERROR)
        self._outbox.put(events + ends)

    def _fail(self, error: Exception, unread: Set[Sequence] = frozenset()) -> None:
        """Go on after an error, wherever it was raised: what the host counted and what the device holds may be wrong.

        Open requests that wait go on. All others end with ERROR, and so do ``unread``, whose tokens may be lost. An
        open request that the scheduler has not got any more was left without its end, and gets it too.
        """
        self._in_flight = None
        failed = self.scheduler.fail(set(self._outbox.open) - unread)
        self.observers.failed()
        recover(self.runner, error)
        self.offload.fail()
        self._requests.end_failed(failed, error)

    def stats(self) -> EngineStats:
        """Return a snapshot for metrics."""
        return self.meter.stats(self.scheduler, self.block_events)

    def close(self) -> None:
        """Write the blocks that wait to the KV tier and publish the events of blocks, within a few seconds.

        The engine runs nothing after that.
        """
        until = self.clock() + CLOSE_SECONDS
        while self.offload.has_blocks_to_write and not self.scheduler.has_work and self.clock() < until:
            self.step()
        self.offload.close(max(0.0, until - self.clock()))
        self.block_events.close(max(1.0, until - self.clock()))
