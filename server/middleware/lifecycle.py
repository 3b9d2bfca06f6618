"""Decide whether the server takes requests, by the engine's state and by draining, and know the running requests."""

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from jaxgen.client import EngineClient
from jaxgen.server.errors import ENGINE_DEAD_MESSAGE, ApiError
from jaxgen.server.limits import Availability
from jaxgen.server.middleware.context import context_of
from jaxgen.server.middleware.deadline import Deadline


class Lifecycle:
    """State of the server. Set ``draining`` to refuse new requests while ``num_requests`` running ones finish."""

    def __init__(self, engine: EngineClient, limits: Availability) -> None:
        self._engine = engine
        self._limits = limits
        self._running: set[Deadline] = set()
        self.draining = False

    @property
    def num_requests(self) -> int:
        return len(self._running)

    def trouble(self) -> str | None:
        """Return why the engine does not answer requests now; None when it does."""
        status = self._engine.status()
        if status.state != "ready":
            return f"the engine is {status.state}" + ("; the server's log says why" if status.reason else "")
        if status.stalled_seconds > self._limits.stall_limit_s:
            return f"the engine finished no step for {status.stalled_seconds:.0f} s while work was waiting"
        return None

    @contextmanager
    def request(self) -> Iterator[Deadline]:
        """Count a request to the engine while it runs, and give its deadline.

        Raises ApiError 503 while starting, draining, or after the engine died.
        """
        with self._counted(self._limits.request_timeout_s) as deadline:
            self._check_engine()
            yield deadline

    @contextmanager
    def other_request(self) -> Iterator[Deadline]:
        """Count a request that needs no engine, until its response is sent. Raises ApiError 503 while draining."""
        with self._counted(None) as deadline:
            yield deadline

    def check(self) -> None:
        """Raise ApiError 503 while starting, draining, or after the engine died; for requests that are not counted."""
        self._check_draining()
        self._check_engine()

    def cut_off(self) -> int:
        """Give up the running requests, whose callers get an error. Return how many there are."""
        message = "The request was given up, because the server is shutting down: send it again."
        for deadline in self._running:
            deadline.give_up(ApiError(503, message, code="shutting_down", headers=self._retry()))
        return len(self._running)

    @contextmanager
    def _counted(self, seconds: float | None) -> Iterator[Deadline]:
        self._check_draining()
        deadline = Deadline(seconds)
        self._running.add(deadline)
        try:
            yield deadline
        finally:
            self._running.remove(deadline)
            deadline.close()

    def _check_draining(self) -> None:
        if self.draining:
            message = "The server is shutting down and takes no new requests."
            raise ApiError(503, message, code="draining", headers=self._retry())

    def _check_engine(self) -> None:
        state = self._engine.status().state
        if state == "starting":
            raise ApiError(503, "The engine is still starting.", code="starting", headers=self._retry())
        if state == "dead":
            raise ApiError(503, ENGINE_DEAD_MESSAGE, code="engine_dead")

    def _retry(self) -> dict[str, str]:
        return {"Retry-After": str(self._limits.retry_after_s)}


class LifecycleMiddleware:
    """Counts requests to a route that needs no engine until the response, perhaps a file, is sent."""

    def __init__(self, app: ASGIApp, lifecycle: Lifecycle) -> None:
        self._app = app
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._lifecycle.other_request() as deadline:
            try:
                async with deadline.bound():
                    await self._app(scope, receive, send)
            except ApiError as error:
                context = context_of(scope)
                if context.status is None:
                    raise
                # The rest of the response is missing, which the caller learns when the connection is closed.
                context.error = error.code
                while (await receive())["type"] != "http.disconnect":
                    pass
