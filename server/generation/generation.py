"""Several completions, or embeddings, at once: one task per choice follows it to its end."""

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
from jaxgen.server.generation.deadline import Deadline
from jaxgen.server.generation.queue_limit import Queued, QueueLimit
from jaxgen.server.metrics.metrics import Metrics, RequestTimer
from jaxgen.server.middleware.context import RequestContext


class EventSink(Queued, Protocol):
    """What is made of the events of one request."""

    @property
    def finish_reason(self) -> str | None:
        """Set: it needs no more of them."""
        ...

    @property
    def has_news(self) -> bool: ...

    def feed(self, event: TokenEvent) -> None:
        """Raises ApiError when the event says that the engine gave the request up."""
        ...


class Generation[Choice: EventSink]:
    """An async context in which the engine works on ``choices``; leaving it aborts what is unfinished.

    Tokens are taken as soon as they are there and kept in their choice as text, so that stop strings act at once and a
    slow reader delays nobody. What is kept for a slow reader is at most the text of its choices' max_tokens.
    """

    def __init__(
        self,
        engine: EngineClient,
        choices: Sequence[Choice],
        queue: QueueLimit,
        metrics: Metrics,
        record: RequestContext,
        deadline: Deadline,
    ) -> None:
        """``record``: of the caller's request. ``deadline``: when it is given up, whether or not anybody reads what
        there is."""
        self._engine = engine
        self._choices = choices
        self._queue = queue
        self._metrics = metrics
        self._record = record
        self._deadline = deadline
        self._alarm: asyncio.TimerHandle | None = None
        self._late: ApiError | None = None
        self._waiting: asyncio.Future[None] | None = None
        """What ``next_news`` waits for. It alone does: an asyncio.Event, made for several, takes longer."""
        self._take_news: Callable[[], bool] | None = None
        self._tells_soon = False
        self._context = copy_context()
        """The request's: the engine's events come in that of its thread."""
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        """Raises ApiError 429 where too many wait already."""
        try:
            self._queue.enter(self._choices, self._record.caller)
        except ApiError:
            for service in (choice.request.service for choice in self._choices):
                if service.promises:
                    self._metrics.count_kept(service, "refused")
            raise
        self._tasks = [asyncio.create_task(self._run(choice)) for choice in self._choices]
        for task in self._tasks:
            task.add_done_callback(lambda _: self._wake())
        if self._deadline.at is not None:
            self._alarm = asyncio.get_running_loop().call_at(self._deadline.at, self._give_up)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        # Not in their tasks: one that is cancelled before it begins does nothing.
        for choice in self._choices:
            self._queue.leave(choice)
        for task in self._tasks:
            task.cancel()
        # Their own errors were raised by next_news, or came after the one that was.
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def next_news(self, take_news: Callable[[], bool] | None = None) -> list[Choice]:
        """Waits until some choices have something to take, and returns them; none when all have ended and been taken.

        ``take_news``, called in the event loop whenever there may be something while no choice has ended, may take it
        itself and return True: then nobody is woken for it, which is most of what a token costs here.
        Raises the first error of any choice, what ``take_news`` raises, and ApiError 504 at the deadline.
        """
        self._take_news = take_news
        while True:
            under_way = False
            for task in self._tasks:
                if task.done():
                    task.result()
                else:
                    under_way = True
            ready = [choice for choice in self._choices if choice.has_news]
            if ready or not under_way:
                return ready
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting

    async def finish(self) -> None:
        """Waits until every choice has ended. Raises as ``next_news``."""
        await asyncio.gather(*self._tasks)

    def _wake(self) -> None:
        if self._waiting is not None and not self._tells_soon:
            # Soon: after all that the engine has handed over by now, so that it goes out together.
            self._tells_soon = True
            asyncio.get_running_loop().call_soon(self._tell, context=self._context)

    def _tell(self) -> None:
        self._tells_soon = False
        waiting = self._waiting
        if waiting is None or waiting.done():
            return
        try:
            goes_on = self._take_news is not None and not any(map(asyncio.Task.done, self._tasks)) and self._take_news()
        except Exception as error:
            waiting.set_exception(error)
            return
        if not goes_on:
            waiting.set_result(None)

    def _give_up(self) -> None:
        self._late = self._deadline.error()
        for task in self._tasks:
            task.cancel()

    def _take(self, choice: Choice, timer: RequestTimer, event: TokenEvent) -> bool:
        if timer.first is None:
            self._queue.leave(choice)
        timer.observe(event)
        if self._record.first_token is None:
            self._record.first_token = timer.first
        choice.feed(event)
        self._wake()
        return choice.finish_reason is None

    async def _run(self, choice: Choice) -> None:
        record = self._record
        request = choice.request
        timer = RequestTimer(self._metrics, record.arrival, len(request.prompt), request.service)
        reason = "error"
        try:
            await self._engine.follow(request, partial(self._take, choice, timer))
            if choice.finish_reason is None:
                raise RuntimeError(f"the engine ended {choice.request.request_id} without a finish event")
            # To a caller it may have ended with calls of tools, which is "stop" to the engine.
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
