"""Run the choices, or embeddings, of one request together: one task follows each to its end."""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Protocol, Self

from jaxgen.client import EngineClient
from jaxgen.core.errors import WouldBeLateError
from jaxgen.core.request import FinishReason, TokenEvent
from jaxgen.server.errors import ApiError
from jaxgen.server.generation.queue_limit import Queued, QueueLimit
from jaxgen.server.metrics.metrics import Metrics, RequestTimer
from jaxgen.server.middleware.context import RequestContext
from jaxgen.server.middleware.deadline import Deadline


class EventSink(Queued, Protocol):
    """A consumer of the events of one engine request."""

    @property
    def finish_reason(self) -> str | None:
        """Set once it needs no more events."""
        ...

    @property
    def has_updates(self) -> bool: ...

    def feed(self, event: TokenEvent) -> None:
        """Take an event. Raises ApiError when the engine failed on the request or aborted it."""
        ...


class Generation[Choice: EventSink]:
    """An async context in which the engine works on ``choices``; on exit, unfinished choices are aborted.

    Tokens are taken as soon as they arrive and kept in their choice as text, so that stop strings act at once and a
    slow reader delays no other request. At most the text of its choices' max_tokens is kept for a slow reader.
    """

    def __init__(
        self,
        engine: EngineClient,
        choices: Sequence[Choice],
        queue: QueueLimit,
        metrics: Metrics,
        context: RequestContext,
        deadline: Deadline,
    ) -> None:
        """``context``: of the caller's request. ``deadline``: cancels it, even while its caller does not read."""
        self._engine = engine
        self._choices = choices
        self._queue = queue
        self._metrics = metrics
        self._request_context = context
        self._deadline = deadline
        self._late: ApiError | None = None
        self._waiting: asyncio.Future[None] | None = None
        """The future for which ``next_updates`` waits, its only waiter: an asyncio.Event, for several, takes longer."""
        self._drain: Callable[[], bool] | None = None
        self._wakes_soon = False
        self._context = copy_context()
        """Context variables of the request: the engine's events come in the context of the engine's thread."""
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        """Start the choices. Raises ApiError 429 where the queue is full."""
        try:
            self._queue.enter(self._choices, self._request_context.caller)
        except ApiError:
            for service in (choice.request.service for choice in self._choices):
                if service.has_targets:
                    self._metrics.count_class_outcome(service, "refused")
            raise
        self._tasks = [asyncio.create_task(self._run(choice)) for choice in self._choices]
        for task in self._tasks:
            task.add_done_callback(lambda _: self._wake())
        self._deadline.add(self._give_up)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._deadline.remove(self._give_up)
        # Not in their tasks: a task that is cancelled before it begins runs no code.
        for choice in self._choices:
            self._queue.leave(choice)
        for task in self._tasks:
            task.cancel()
        # next_updates has raised the first of their errors.
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def next_updates(self, drain: Callable[[], bool] | None = None) -> list[Choice]:
        """Wait for choices with new output, and return them; return none when all have ended and been taken.

        ``drain`` is called in the event loop when a choice may have new output and no choice has ended. It may take
        the output itself and return True: then this task is not woken, which is most of a token's cost here.
        Raises the first error of any choice, what ``drain`` raises, and the ApiError of the deadline.
        """
        self._drain = drain
        while True:
            under_way = False
            for task in self._tasks:
                if task.done():
                    task.result()
                else:
                    under_way = True
            ready = [choice for choice in self._choices if choice.has_updates]
            if ready or not under_way:
                return ready
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting

    async def finish(self) -> None:
        """Wait until every choice has ended. Raises as ``next_updates``."""
        await asyncio.gather(*self._tasks)

    def _wake(self) -> None:
        if self._waiting is not None and not self._wakes_soon:
            # Soon: after all events that the engine has handed over by now, so that their output goes out together.
            self._wakes_soon = True
            asyncio.get_running_loop().call_soon(self._tell, context=self._context)

    def _tell(self) -> None:
        self._wakes_soon = False
        waiting = self._waiting
        if waiting is None or waiting.done():
            return
        try:
            goes_on = self._drain is not None and not any(map(asyncio.Task.done, self._tasks)) and self._drain()
        except Exception as error:
            waiting.set_exception(error)
            return
        if not goes_on:
            waiting.set_result(None)

    def _give_up(self, error: ApiError) -> None:
        self._late = error
        for task in self._tasks:
            task.cancel()

    def _take(self, choice: Choice, timer: RequestTimer, event: TokenEvent) -> bool:
        if timer.first is None:
            self._queue.leave(choice)
        timer.observe(event)
        if self._request_context.first_token is None:
            self._request_context.first_token = timer.first
        choice.feed(event)
        self._wake()
        return choice.finish_reason is None

    async def _run(self, choice: Choice) -> None:
        context = self._request_context
        request = choice.request
        timer = RequestTimer(self._metrics, context.arrival, request)
        reason = "error"
        try:
            await self._engine.follow(request, partial(self._take, choice, timer))
            if choice.finish_reason is None:
                raise RuntimeError(f"the engine ended {choice.request.request_id} without a finish event")
            # The caller's finish reason may be "tool_calls", which is "stop" to the engine.
            reason = FinishReason.LENGTH if choice.finish_reason == FinishReason.LENGTH else FinishReason.STOP
        except WouldBeLateError:
            reason = "refused"
            raise
        except asyncio.CancelledError:
            reason = "abort"
            if self._late is not None:
                raise self._late from None
            raise
        finally:
            timer.finish(reason)
