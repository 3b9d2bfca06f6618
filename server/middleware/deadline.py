"""Give requests up: at their deadlines, or when the server ends."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from jaxgen.server.errors import ApiError


class Deadline:
    """Gives up a request that arrives now: ``seconds`` later (None: never by itself), or by ``give_up``."""

    def __init__(self, seconds: float | None) -> None:
        self._error: ApiError | None = None
        self._stops: list[Callable[[ApiError], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.give_up, _timeout(seconds))

    def give_up(self, error: ApiError) -> None:
        """Stop what the request does, now and later, with the caller's error; only the first call counts."""
        if self._error is None:
            self._error = error
            for stop in self._stops:
                self._call_soon(stop, error)

    def add(self, stop: Callable[[ApiError], None]) -> None:
        """Have ``stop`` called with the caller's error when the request is given up, also if that was before."""
        self._stops.append(stop)
        if self._error is not None:
            self._call_soon(stop, self._error)

    def remove(self, stop: Callable[[ApiError], None]) -> None:
        self._stops.remove(stop)

    def close(self) -> None:
        """Forget the time; the request has ended."""
        if self._timer is not None:
            self._timer.cancel()

    @asynccontextmanager
    async def bound(self) -> AsyncIterator[None]:
        """Cancel the code inside this context when the request is given up, and raise the caller's error."""
        try:
            async with asyncio.timeout(None) as timeout:

                def stop(_: ApiError) -> None:
                    timeout.reschedule(asyncio.get_running_loop().time())

                self.add(stop)
                try:
                    yield
                finally:
                    self.remove(stop)
        except TimeoutError:
            if not timeout.expired() or self._error is None:
                raise
            raise self._error from None

    def _call_soon(self, stop: Callable[[ApiError], None], error: ApiError) -> None:
        """Call ``stop`` soon: tasks that are made and have not begun could not tell why they are cancelled."""

        def call() -> None:
            if stop in self._stops:
                stop(error)

        asyncio.get_running_loop().call_soon(call)


def _timeout(seconds: float) -> ApiError:
    """Return the caller's error. Its header keeps OpenAI's clients from a retry, which would take as long again."""
    message = f"The request was given up: it took more than {seconds:g} s (--request-timeout)."
    return ApiError(504, message, code="request_timeout", headers={"x-should-retry": "false"})
