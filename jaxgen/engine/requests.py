"""Take requests in and give each its end, in the engine's thread. Host only, no jax."""

from collections.abc import Callable, Iterable

from jaxgen.core.quote import Quote
from jaxgen.core.request import FinishReason, Request, TokenEvent
from jaxgen.core.sequence import Sequence
from jaxgen.engine.intake import Intake
from jaxgen.engine.observer import Observer
from jaxgen.engine.outbox import Outbox
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.text.constraint import Constraint


class Requests:
    """The requests of an engine, from when they are accepted until their last event waits in the outbox."""

    def __init__(
        self,
        scheduler: Scheduler,
        intake: Intake,
        outbox: Outbox,
        observers: Observer,
        recover: Callable[[Exception], None],
    ) -> None:
        """``recover``: is called with an error that leaves the scheduler in an unknown state."""
        self._scheduler = scheduler
        self._intake = intake
        self._outbox = outbox
        self._observers = observers
        self._recover = recover

    def add(self, request: Request, constraint: Constraint | None, now: float) -> None:
        """Accept a request, as ``Engine.add``."""
        self._outbox.check(request.request_id)
        sequence = self._intake.take(request, constraint)
        try:
            self._accept(sequence, now)
        except Exception as error:
            self._outbox.withdraw(request.request_id)
            if self._scheduler.lives(sequence):  # so it was not refused: what else the error left undone is unknown
                self._recover(error)
            self._observers.ended(sequence, FinishReason.ERROR)
            raise

    def _accept(self, sequence: Sequence, now: float) -> None:
        """Take a sequence in, or answer it at once if it wants nothing. Raises as ``Scheduler.add``."""
        wants_steps = sequence.request.wants_steps
        if wants_steps:
            self._scheduler.add(sequence, now)
        self._observers.queued(sequence, now)
        self._outbox.accept(sequence)
        if not wants_steps:
            self._observers.ended(sequence, FinishReason.LENGTH)
            self._outbox.put([TokenEvent(sequence.request_id, finish_reason=FinishReason.LENGTH)])

    def quote(self, request: Request, now: float) -> Quote:
        """Predict a request's latencies, as ``Engine.quote``."""
        sequence = self._intake.preview(request)
        return self._scheduler.quote(sequence, now) if request.wants_steps else Quote()

    def abort(self, request_id: str) -> bool:
        """Drop a request and its events, as ``Engine.abort``."""
        sequence = self._scheduler.living(request_id)
        is_open = self._outbox.withdraw(request_id)
        if sequence is not None:
            try:
                self.drop(request_id, FinishReason.ABORT)
            except Exception as error:
                self._recover(error)
                self._observers.ended(sequence, FinishReason.ABORT)
        return is_open

    def drop(self, request_id: str, reason: FinishReason) -> None:
        """Take a request out of the scheduler, if it is there."""
        sequence = self._scheduler.abort(request_id)
        if sequence is not None:
            self._observers.ended(sequence, reason)

    def end_failed(self, failed: Iterable[Sequence], error: Exception) -> None:
        """Give their last event to requests that ended by an error, and to open ones that the scheduler has lost."""
        ended = dict.fromkeys([*failed, *[s for s in self._outbox.open if not self._scheduler.lives(s)]])
        for sequence in ended:
            self._observers.ended(sequence, FinishReason.ERROR)
        message = f"the step that computed this request failed: {type(error).__name__}"
        self._outbox.put([TokenEvent(s.request_id, finish_reason=FinishReason.ERROR, error=message) for s in ended])
