"""Restrict which web pages may call the server from a browser: its own, and pages of named origins (CORS)."""

from collections.abc import Collection

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from jaxgen.server.config import Cors
from jaxgen.server.errors import ApiError
from jaxgen.server.middleware.refusals import refused
from jaxgen.server.middleware.request_id import HEADER

_OF_PAGES = ("http", "https")
"""Schemes of web pages. Others belong to extensions and desktop programs; no page can forge them."""


def cors_middleware(cors: Cors) -> Middleware:
    """Return middleware that answers preflight requests and adds CORS headers to every response from inside it."""
    return Middleware(
        CORSMiddleware,
        allow_origins=cors.origins,
        allow_methods=cors.methods,
        allow_headers=cors.headers,
        allow_credentials=cors.credentials,
        allow_private_network=True,  # of an origin that is allowed; browsers ask where a page is on a public address
        expose_headers=(HEADER, "retry-after"),
    )


class OriginMiddleware:
    """Answers 403 to web pages of origins that are neither ``named`` nor the server's own.

    CORS keeps such a page from reading a response, but the server would still compute it. A browser sends bodies
    without a content type, and forms with files, without a preflight request. Other programs send no ``Origin``.
    """

    def __init__(self, app: ASGIApp, named: Collection[str]) -> None:
        self._app = app
        self._named = frozenset(named)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = _header(scope, b"origin") if scope["type"] == "http" else None
        if origin is None or self._allows(origin, scope):
            await self._app(scope, receive, send)
            return
        message = f"Pages of {origin[:200]!r} may not call this server: their origin is none of --allowed-origins."
        await refused(scope, ApiError(403, message, code="origin_not_allowed"))(scope, receive, send)

    def _allows(self, origin: str, scope: Scope) -> bool:
        if "*" in self._named or origin in self._named:
            return True
        scheme, _, host = origin.partition("://")  # no host in "null", the origin of files and sandboxes
        return host != "" and (scheme not in _OF_PAGES or host == _header(scope, b"host"))


def _header(scope: Scope, name: bytes) -> str | None:
    header: bytes | None = next((value for key, value in scope["headers"] if key == name), None)
    return None if header is None else header.decode("latin-1")
