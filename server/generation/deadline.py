"""Cancel requests at their deadlines."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from jaxgen.server.errors import ApiError


class Deadline:
    """The time at which a request that arrives now is cancelled, ``seconds`` later; None: never."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.at = None if seconds is None else asyncio.get_running_loop().time() + seconds
        """Time by the event loop's clock."""

    def error(self) -> ApiError:
        """Return the caller's error. Its header keeps OpenAI's clients from a retry, which would take as long again."""
        message = f"The request was given up: it took more than {self.seconds:g} s (--request-timeout)."
        return ApiError(504, message, code="request_timeout", headers={"x-should-retry": "false"})

    @asynccontextmanager
    async def bound(self) -> AsyncIterator[None]:
        """Cancel the code inside this context at the deadline, and raise ``error()``."""
        try:
            async with asyncio.timeout_at(self.at) as timeout:
                yield
        except TimeoutError:
            if not timeout.expired():
                raise
            raise self.error() from None
