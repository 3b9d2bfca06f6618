"""Whether the server takes requests: the engine's state, how many requests run, and whether it is draining."""

from collections.abc import Iterator
from contextlib import contextmanager

from jaxgen.request import EngineClient
from server.config import ServerConfig
from server.errors import ApiError


class Lifecycle:
    """Set ``draining`` to refuse new requests while the ``num_requests`` that run go on."""

    def __init__(self, engine: EngineClient, config: ServerConfig) -> None:
        self._engine = engine
        self._config = config
        self.draining = False
        self.num_requests = 0

    def trouble(self) -> str | None:
        """Why the engine answers nobody now; None when it does."""
        status = self._engine.status()
        if status.state != "ready":
            return f"the engine is {status.state}" + (f": {status.reason}" if status.reason else "")
        if status.stalled_seconds > self._config.stall_limit_s:
            return f"the engine finished no step for {status.stalled_seconds:.0f} s while work was waiting"
        return None

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around each request. Raises ApiError 503 while starting, draining, or after the engine died."""
        self._admit()
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_requests -= 1

    def _admit(self) -> None:
        retry = {"Retry-After": str(self._config.retry_after_s)}
        if self.draining:
            raise ApiError(
                503, "The server is shutting down and takes no new requests.", code="draining", headers=retry
            )
        state = self._engine.status().state
        if state == "starting":
            raise ApiError(503, "The engine is still starting.", code="starting", headers=retry)
        if state == "dead":
            raise ApiError(503, "The engine is not running.", code="engine_dead")
