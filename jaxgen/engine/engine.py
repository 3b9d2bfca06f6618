"""The engine: its loop is schedule -> dispatch -> complete; accelerators run a step while the next is planned."""

import logging
import time
from collections.abc import Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from jaxgen.cache.block_log import BlockEventSink
from jaxgen.core.config import EngineConfig, ModelConfig
from jaxgen.core.identity import UNKNOWN, Identity
from jaxgen.core.quote import Quote
from jaxgen.core.request import FinishReason, Request, TokenEvent
from jaxgen.core.sequence import Sequence
from jaxgen.core.stats import EngineStats
from jaxgen.core.step_plan import StepPlan
from jaxgen.engine.block_events import BlockEvents
from jaxgen.engine.constraints import ConstraintFollower
from jaxgen.engine.intake import Intake
from jaxgen.engine.latency import LatencyMeter
from jaxgen.engine.outbox import Outbox
from jaxgen.engine.output_processor import OutputProcessor
from jaxgen.engine.quiet import Quiet
from jaxgen.engine.recorder import Recorder, StepTimings
from jaxgen.engine.recovery import recover
from jaxgen.engine.runners import Compiled, compile_for, make_device, start_device
from jaxgen.engine.step_meter import StepMeter
from jaxgen.engine.warm_up import warm_up
from jaxgen.journal import Journal
from jaxgen.models.model import PackedParams
from jaxgen.offload.build import build_offload
from jaxgen.runner.step import StepOutput
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.scheduling.service.policy import ServicePolicy
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
    output: StepOutput
    dispatched: float
    projected: int = 0
    """Tokens that were projected right before the step."""


class Engine:
    """Runs requests on one device. It has no thread of its own: the caller of ``step`` drives it."""

    def __init__(
        self,
        model: ModelConfig,
        config: EngineConfig,
        params: PackedParams,
        eos_token_ids: frozenset[int],
        *,
        compiled: Compiled | None = None,
        identity: Identity = UNKNOWN,
        events: BlockEventSink | None = None,
        findings: Path | None = None,
        jumps: bool = True,
    ):
        """Compile the step unless ``compiled`` is given, and pack the parameters that its kernels read packed.

        Other parameters are not copied, unless the cache is streamed: then all parameters of the layers are, and
        ``params`` is emptied. ``identity``: what its bits depend on; empty where nobody asks. ``events``: gets which
        contents blocks of the cache come to hold and give up. ``findings``: as for ``warm_up``. ``jumps``: tokens that
        may follow alone under a grammar are not sampled, which changes no answer.
        """
        self.model = model
        self.config = config
        self.identity = identity
        self._device = make_device(model, config, params, compiled or compile_for(model, config))
        self._runs_ahead = config.run_ahead and self._device.runs_ahead
        self._latencies = LatencyMeter()
        self._events = OutputProcessor(self._latencies)
        self._intake = Intake(model, config, eos_token_ids)
        self._outbox = Outbox()
        self._planned = NO_STEP
        """The plan made last."""
        self._in_flight: _InFlight | None = None
        self._quiet = Quiet()
        self._last_read = 0.0
        self._step_time = warm_up(self._device, model, config, findings)
        start_device(self._device, model, config)
        self.offload = build_offload(model, config, self._device, self._step_time, identity.kv_namespace)
        self._meter = StepMeter(config, self._device, self._step_time, self._latencies, self.offload)
        tier = None if self.offload is None else self.offload.tier
        narrow = self._device.uses_narrow(StepPlan(()))
        self._block_events = None if events is None else BlockEvents(events)
        log = None if self._block_events is None else self._block_events.log
        policy = partial(ServicePolicy, step_times=self._step_time)
        self._scheduler = Scheduler(
            config.scheduler,
            config.cache,
            policy=policy,
            tier=tier,
            log=log,
            narrow=narrow,
            copies_blocks=self._device.copies_blocks,
        )
        most_forced = config.scheduler.token_budget if jumps else 0  # more would not fit into the next step
        self._follower = ConstraintFollower(self._scheduler, most_forced=most_forced)
        self._recorder = Recorder(
            config, self._scheduler, self._meter.host_blocks, skips_padding=self._device.kernels.skips_padding
        )

    @property
    def journal(self) -> Journal:
        return self._recorder.journal

    def add(self, request: Request, constraint: Constraint | None = None) -> None:
        """Accept a request; ``step`` returns its events. ``constraint``: which tokens it may have, if not all.

        Raises RequestRefusedError, which names field and limit, for a request that can never run. Raises ValueError if
        a request with its id has not ended. After any error the request is not accepted. Raises DeviceLostError as
        ``step`` does.
        """
        self._outbox.check(request.request_id)
        sequence = self._intake.take(request, constraint)
        try:
            self._accept(sequence)
        except Exception as error:
            self._outbox.withdraw(request.request_id)
            if self._lives(sequence):  # so it was not refused: what else the error left undone is unknown
                self._fail(error)
            self._forget(sequence, FinishReason.ERROR)
            raise

    def _accept(self, sequence: Sequence) -> None:
        """Take a sequence in, or answer it at once if it wants nothing. Raises as ``Scheduler.add``."""
        request = sequence.request
        if request.params.max_tokens > 0 or request.wants_every_token:
            self._scheduler.add(sequence, time.monotonic())
            self._recorder.queued(sequence)
            self._latencies.arrive(request.request_id, time.perf_counter())
            self._outbox.accept(sequence)
        else:
            self._recorder.queued(sequence)
            self._recorder.ended(sequence, FinishReason.LENGTH)
            self._outbox.accept(sequence)
            self._outbox.put([TokenEvent(request.request_id, finish_reason=FinishReason.LENGTH)])

    def quote(self, request: Request) -> Quote:
        """Predict the latencies that a request would have if it were added now. Nothing changes by it.

        Raises RequestRefusedError and WouldBeLateError as ``add`` does; grammars are not compiled for it.
        """
        sequence = self._intake.preview(request)
        if request.params.max_tokens == 0 and not request.wants_every_token:
            return Quote()
        return replace(self._scheduler.quote(sequence, time.monotonic()), spread=self._step_time.spread)

    def limit_prompts(self, tokens: int | None) -> None:
        """Limit the prompt tokens of each step from now on; None: as many as is best.

        Raises ValueError below 1.
        """
        self._scheduler.limit_prompts(tokens)

    def abort(self, request_id: str) -> bool:
        """Drop a request and free its row and blocks; return False if there is none. It gets no further event.

        Raises DeviceLostError as ``step`` does.
        """
        sequence = self._scheduler.living(request_id)
        found = self._outbox.withdraw(request_id)
        if sequence is not None:
            try:
                self._drop(sequence, FinishReason.ABORT)
            except Exception as error:
                self._fail(error)
                self._forget(sequence, FinishReason.ABORT)
        return found

    @property
    def runs_ahead(self) -> bool:
        """Whether a step begins before the events of the one before it are known."""
        return self._runs_ahead

    @property
    def has_work(self) -> bool:
        saves = self.offload is not None and self.offload.has_saves
        published = self._block_events is not None and self._block_events.pending
        return not self._outbox.is_empty or self._scheduler.has_work or saves or published

    @property
    def held_for(self) -> float:
        """Seconds for which all remaining work is held back because it is background work; else 0."""
        if not self._outbox.is_empty or self._in_flight is not None or self._scheduler.num_online:
            return 0.0
        if self.offload is not None and self.offload.transfer.busy:
            return 0.0
        return self._quiet.seconds_left(time.monotonic())

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
            under_way = NO_STEP if before is None else before.plan
            description = "none" if before is None else under_way.describe()
            logger.exception("a step failed: %s; under way: %s", self._planned.describe(), description)
            self._fail(error, {chunk.sequence for chunk in under_way.chunks if chunk.samples})
        return self._outbox.take()

    def _advance(self, before: _InFlight | None) -> None:
        """Plan and dispatch the next step, and read the one before it, or the same if it is to be waited for."""
        started, waited = time.perf_counter(), 0.0
        plan = self._planned = self._plan()
        if self._block_events is not None:
            self._block_events.planned(plan)
        if plan.chunks:
            dispatched = time.perf_counter()
            projected = 0 if self.offload is None else self.offload.transfer.projected
            self._in_flight = _InFlight(plan, self._device.run(plan), dispatched, projected)
            if not self._device.runs_ahead:
                waited += time.perf_counter() - dispatched
            if not self._runs_ahead:
                before, self._in_flight = self._in_flight, None
        elif before is None:
            waited = self._wait_for_copies()
            self._outbox.put(self._follow_waiting())
        if before is not None:
            waiting = time.perf_counter()
            before.output.tokens.block_until_ready()
            waited += time.perf_counter() - waiting
            self._outbox.put(self._read(before))
        if self._in_flight is None:
            self._scheduler.check_idle()
        self._meter.counters.host_seconds += time.perf_counter() - started - waited

    def close(self) -> None:
        """Write the blocks that wait to the KV tier and publish the events of blocks, within a few seconds.

        The engine runs nothing after that.
        """
        until = time.monotonic() + CLOSE_SECONDS
        if self.offload is not None and self.offload.tier.fetcher is not None:
            while not self._scheduler.has_work and self.offload.has_saves and time.monotonic() < until:
                self.step()
            self.offload.close(max(0.0, until - time.monotonic()))
        if self._block_events is not None:
            self._block_events.close(max(1.0, until - time.monotonic()))

    def stats(self) -> EngineStats:
        """Return a snapshot for metrics."""
        return self._meter.stats(self._scheduler, self._block_events)

    def _plan(self) -> StepPlan:
        """Return the plan of the next step. Enters finished restores first, and starts the copies of the plan."""
        now = time.monotonic()
        if self.config.scheduler.background_tokens == 0:
            if self._scheduler.num_online:
                self._quiet.begin(now)
            self._scheduler.hold_background = self._quiet.seconds_left(now) > 0.0
        if self.offload is None:
            plan = self._scheduler.schedule(now)
            self._recorder.planned(plan)
            return plan
        for restore, whole in self.offload.poll():
            self._recorder.restored(restore, whole=whole)
            self._scheduler.restored(restore, whole=whole)
        plan = self._scheduler.schedule(now)
        self._recorder.planned(plan)
        self.offload.transfer.start(plan)
        if not plan.chunks:
            self._device.load(plan)
            self._latencies.admit(plan, time.perf_counter())
        return plan

    def _wait_for_copies(self) -> float:
        """Wait for copies, as there is nothing to compute. Return the seconds waited."""
        if self.offload is None or not self.offload.busy:
            return 0.0
        started = time.perf_counter()
        self.offload.wait(MOST_WAIT)
        waited = time.perf_counter() - started
        self._meter.counters.stalled_seconds += waited
        return waited

    def _read(self, step: _InFlight) -> list[TokenEvent]:
        """Read the output of a step and return its events. Waits for the step."""
        tokens = np.asarray(step.output.tokens)
        self._events.read(step.plan, step.output)
        now = time.perf_counter()
        step_time = self._count(step, max(step.dispatched, self._last_read), now)
        self._last_read = now
        sampled = [int(tokens[i]) for i, chunk in enumerate(step.plan.chunks) if chunk.samples]
        outcomes = self._scheduler.complete(step.plan, sampled)
        forced, ends = self._follower.follow(outcomes)
        outcomes += forced
        self._meter.counters.generation_tokens += len(forced)
        if self._block_events is not None:
            self._block_events.ended()
        events = [self._events.make(outcome, now) for outcome in outcomes]
        self._recorder.read(step.plan, step_time, outcomes, events)
        return events + self._ended_by(ends)

    def _follow_waiting(self) -> list[TokenEvent]:
        """Advance constraints where there is no step to compute; return the events of tokens that these force."""
        forced, ends = self._follower.follow((), idle=True)
        self._meter.counters.generation_tokens += len(forced)
        events = [self._events.make(outcome, time.perf_counter()) for outcome in forced]
        for outcome in forced:
            if outcome.finish_reason is not None:
                self._recorder.ended(outcome.sequence, outcome.finish_reason)
        return events + self._ended_by(ends)

    def _ended_by(self, ends: list[TokenEvent]) -> list[TokenEvent]:
        """Drop the requests whose last events these are, and return the events."""
        for end in ends:
            sequence = self._scheduler.living(end.request_id)
            if sequence is not None:
                self._drop(sequence, FinishReason.ERROR)
        return ends

    def _drop(self, sequence: Sequence, reason: FinishReason) -> None:
        self._scheduler.abort(sequence.request_id)
        self._forget(sequence, reason)

    def _forget(self, sequence: Sequence, reason: FinishReason) -> None:
        """Drop the data of a request that has ended."""
        self._events.forget(sequence.request_id)
        self._recorder.ended(sequence, reason)

    def _lives(self, sequence: Sequence) -> bool:
        return self._scheduler.living(sequence.request_id) is sequence

    def _fail(self, error: Exception, unread: Set[Sequence] = frozenset()) -> None:
        """Go on after an error, wherever it was raised: what the host counted and what the device holds may be wrong.

        Open requests that wait go on. All others end with ERROR, and so do ``unread``, whose tokens may be lost. An
        open request that the scheduler has not got any more was left without its end, and gets it too.
        """
        self._in_flight = None
        failed = self._scheduler.fail(set(self._outbox.open) - unread)
        if self._block_events is not None:
            self._block_events.failed()
        recover(self._device, error)
        if self.offload is not None:
            self.offload.fail()
        message = f"the step that computed this request failed: {type(error).__name__}"
        ended = dict.fromkeys([*failed, *[s for s in self._outbox.open if not self._lives(s)]])
        for sequence in ended:
            self._forget(sequence, FinishReason.ERROR)
        self._outbox.put([TokenEvent(s.request_id, finish_reason=FinishReason.ERROR, error=message) for s in ended])

    def _count(self, step: _InFlight, began: float, ended: float) -> StepTimings:
        """Count a step. ``began``: when it was dispatched, or when the step before it was read, if that was later."""
        return self._meter.count(step.plan, began, ended, projected=step.projected)
