"""A line in the log for each request, when it has ended."""

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.log import FIELDS
from server.record import record_of

logger = logging.getLogger(__name__)

PROBES = frozenset({"/health", "/ready", "/metrics"})
"""Asked every few seconds, whatever happens: at level DEBUG."""

CALLER_LEFT = 499
"""What proxies log where no answer went out because nobody waited for it."""


class AccessLogMiddleware:
    """``with_prompts``: the line has the text of the prompts too."""

    def __init__(self, app: ASGIApp, *, with_prompts: bool) -> None:
        self._app = app
        self._with_prompts = with_prompts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = record_of(scope)

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            record.status = record.status or CALLER_LEFT
            level = logging.DEBUG if record.path in PROBES else logging.INFO
            if logger.isEnabledFor(level):
                logger.log(level, "request", extra={FIELDS: record.fields(with_prompts=self._with_prompts)})
