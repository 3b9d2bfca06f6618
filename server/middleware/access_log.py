"""Log a line for each request when it has ended, and count responses."""

import logging

from starlette.types import ASGIApp, Receive, Scope, Send

from jaxgen.server.log import FIELDS
from jaxgen.server.metrics.metrics import Metrics
from jaxgen.server.middleware.context import context_of

logger = logging.getLogger(__name__)

PROBES = frozenset({"/health", "/ready", "/livez", "/metrics"})
"""Paths that are polled every few seconds."""

CALLER_LEFT = 499
"""Status that proxies log for a request whose caller disconnected before the response."""


class AccessLogMiddleware:
    """Logs and counts requests. ``prompt_characters``: most of each prompt in the line; None: no prompts."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, prompt_characters: int | None) -> None:
        self._app = app
        self._metrics = metrics
        self._prompt_characters = prompt_characters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = context_of(scope)
        try:
            await self._app(scope, receive, send)
        finally:
            context.status = context.status or CALLER_LEFT
            self._metrics.count_response(context.status)
            level = logging.DEBUG if context.is_quiet else logging.INFO
            if logger.isEnabledFor(level):
                logger.log(level, "request", extra={FIELDS: context.fields(prompt_characters=self._prompt_characters)})
