"""Limit the time in which a request's body must arrive."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxgen.server.errors import ApiError

MIN_BODY_RATE = 16 * 1024
"""Bytes of a body that extend its limit by one second, so that a long body may take longer than a short one."""


class BodyTimeoutMiddleware:
    """Answers 408 to a body that takes longer than ``seconds``, plus a second per MIN_BODY_RATE bytes received."""

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        deadline: float | None = asyncio.get_running_loop().time() + self._seconds

        async def timed() -> Message:
            nonlocal deadline
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError as error:
                raise _slow_body() from error
            if not message.get("more_body", False):
                deadline = None  # later messages are disconnects
            elif deadline is not None:
                deadline += len(message.get("body", b"")) / MIN_BODY_RATE
            return message

        await self._app(scope, timed, send)


def _slow_body() -> ApiError:
    # The rest of the body must not be parsed as the next request.
    headers = {"Connection": "close"}
    return ApiError(408, "The request's body took too long to arrive.", code="body_timeout", headers=headers)
