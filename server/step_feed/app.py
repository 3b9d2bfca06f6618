"""Give an app its step feed: ``/steps`` and ``/steps/history``."""

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from jaxgen.client import JournalKeeper
from jaxgen.server.api.endpoint import AppState
from jaxgen.server.api.sse import EventWriter, more_events, start_of_events, until_disconnect
from jaxgen.server.errors import ApiError
from jaxgen.server.middleware.auth import CALLER
from jaxgen.server.middleware.context import context_of
from jaxgen.server.step_feed.history import History, HistoryMiddleware
from jaxgen.server.step_feed.hub import Hub, Reader
from jaxgen.server.step_feed.readings import Meter
from jaxgen.server.step_feed.views import EVERYTHING


class Steps:
    """The feed and the history of an app. Its routes answer 404 where the engine keeps no journal."""

    def __init__(self, services: AppState, *, keyed: bool) -> None:
        """``keyed``: callers need API keys."""
        engine = services.engine
        self._keeper = engine if isinstance(engine, JournalKeeper) else None
        self._lifecycle = services.lifecycle
        meter = Meter(engine, services.metrics)
        self._history = History(engine, meter)
        self._hub = Hub(engine, meter, self._history, services.lifecycle, keyed=keyed)

    @property
    def routes(self) -> list[Route]:
        return [Route("/steps", _Feed(self), methods=["GET"]), Route("/steps/history", self.show_history)]

    @property
    def middleware(self) -> list[Middleware]:
        return [] if self._keeper is None else [Middleware(HistoryMiddleware, history=self._history)]

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Take samples while the context lasts, whether requests come or not."""
        if self._keeper is None:
            yield
            return
        self._history.start()
        try:
            yield
        finally:
            self._history.stop()

    async def show_history(self, _: Request) -> Response:
        self._known_keeper()
        return JSONResponse(self._history.as_json())

    async def feed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream the feed to a reader until it leaves, or the server ends."""
        keeper = self._known_keeper()
        self._lifecycle.check()
        journal = keeper.journal
        if journal is None:
            raise ApiError(503, "The engine is still starting.", code="starting", headers={"Retry-After": "5"})
        caller = scope.get(CALLER, "")
        with self._hub.place(caller):
            await send(start_of_events())
            if scope["method"] == "HEAD":
                await send(more_events((), last=True))
                return
            context = context_of(scope)
            view = EVERYTHING if context.operator else caller
            reader = Reader(EventWriter(context.send_more or send), caller, view)
            self._hub.join(reader, journal)
            try:
                await until_disconnect(receive, reader.run())
            finally:
                self._hub.leave(reader)

    def _known_keeper(self) -> JournalKeeper:
        if self._keeper is None:
            raise ApiError(404, "The engine of this server keeps no journal of its steps.", code="no_journal")
        return self._keeper


class _Feed:
    """The feed as an ASGI app, not as a function of a request: it must notice that a reader leaves."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._steps.feed(scope, receive, send)
