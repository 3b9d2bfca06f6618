"""Bounds on time: of a body that arrives, and of a request as a whole."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxgen.server.errors import ApiError

MIN_BODY_RATE = 16 * 1024
"""Bytes for which a body gets a further second, so that a long one may take longer than a short one."""


class BodyTimeoutMiddleware:
    """Answers 408 to a body that takes longer than ``seconds``, and a second per MIN_BODY_RATE bytes of it."""

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
                deadline = None  # what comes later is the caller leaving
            elif deadline is not None:
                deadline += len(message.get("body", b"")) / MIN_BODY_RATE
            return message

        await self._app(scope, timed, send)


def _slow_body() -> ApiError:
    # What is left of the body must not be taken for the next request.
    headers = {"Connection": "close"}
    return ApiError(408, "The request's body took too long to arrive.", code="body_timeout", headers=headers)
