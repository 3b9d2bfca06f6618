"""Put ``x-request-id`` into every response and record: the caller's id, or a new one. Anthropic's clients read it as
``request-id``."""

import re
from collections.abc import Collection
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxgen.server.envelopes import speaks_anthropic
from jaxgen.server.middleware.context import CONTEXT, RequestContext, route_path

HEADER = "x-request-id"
OF_ANTHROPIC = "request-id"
_ACCEPTED = re.compile(r"[\x21-\x7e]{1,128}")


class RequestIdMiddleware:
    """Takes a caller's id of up to 128 visible ASCII characters; makes a new id where it is missing or invalid.

    ``quiet``: paths whose requests are logged at level DEBUG, and not traced.
    """

    def __init__(self, app: ASGIApp, quiet: Collection[str] = ()) -> None:
        self._app = app
        self._quiet = frozenset(quiet)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        name = given if _ACCEPTED.fullmatch(given) else f"req-{uuid4().hex}"
        client = scope.get("client") or ("",)
        path = route_path(scope)
        context = RequestContext(name, scope["method"], path, client[0], is_quiet=path in self._quiet, send_more=send)

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[HEADER] = name
                if speaks_anthropic(path, scope["headers"]):
                    headers[OF_ANTHROPIC] = name
            await send(message)

        await self._app({**scope, CONTEXT: context}, receive, named)
