"""Decide whether the server takes requests, by the engine's state and by draining, and count running requests."""

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from jaxgen.client import EngineClient
from jaxgen.server.config import ServerConfig
from jaxgen.server.errors import ENGINE_DEAD_MESSAGE, ApiError


class Lifecycle:
    """State of the server. Set ``draining`` to refuse new requests while ``num_requests`` running ones finish."""

    def __init__(self, engine: EngineClient, config: ServerConfig) -> None:
        self._engine = engine
        self._config = config
        self.draining = False
        self.num_requests = 0

    def trouble(self) -> str | None:
        """Return why the engine does not answer requests now; None when it does."""
        status = self._engine.status()
        if status.state != "ready":
            return f"the engine is {status.state}" + ("; the server's log says why" if status.reason else "")
        if status.stalled_seconds > self._config.stall_limit_s:
            return f"the engine finished no step for {status.stalled_seconds:.0f} s while work was waiting"
        return None

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request to the engine while it runs. Raises ApiError 503 while starting, draining, or after the
        engine died."""
        with self.other_request():
            state = self._engine.status().state
            if state == "starting":
                raise ApiError(503, "The engine is still starting.", code="starting", headers=self._retry())
            if state == "dead":
                raise ApiError(503, ENGINE_DEAD_MESSAGE, code="engine_dead")
            yield

    @contextmanager
    def other_request(self) -> Iterator[None]:
        """Count a request that needs no engine, until its response is sent. Raises ApiError 503 while draining."""
        if self.draining:
            message = "The server is shutting down and takes no new requests."
            raise ApiError(503, message, code="draining", headers=self._retry())
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_requests -= 1

    def _retry(self) -> dict[str, str]:
        return {"Retry-After": str(self._config.retry_after_s)}


class LifecycleMiddleware:
    """Counts requests to a route that needs no engine until the response, perhaps a file, is sent."""

    def __init__(self, app: ASGIApp, lifecycle: Lifecycle) -> None:
        self._app = app
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._lifecycle.other_request():
            await self._app(scope, receive, send)
