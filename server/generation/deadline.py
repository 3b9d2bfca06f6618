"""The time at which a request is given up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from jaxgen.server.errors import ApiError


class Deadline:
    """The time at which a request that has just arrived is given up; ``seconds`` None: never."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.at = None if seconds is None else asyncio.get_running_loop().time() + seconds
        """By the event loop's clock."""

    def error(self) -> ApiError:
        """What the caller is told. OpenAI's clients heed the header: to try again would take as long again."""
        message = f"The request was given up: it took more than {self.seconds:g} s (--request-timeout)."
        return ApiError(504, message, code="request_timeout", headers={"x-should-retry": "false"})

    @asynccontextmanager
    async def bound(self) -> AsyncIterator[None]:
        """Ends what is inside at the deadline. Raises ``error()`` then."""
        try:
            async with asyncio.timeout_at(self.at) as timeout:
                yield
        except TimeoutError:
            if not timeout.expired():
                raise
            raise self.error() from None
