"""Which web pages may call the server from a browser: its own, and those whose origins are named (CORS)."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from jaxgen.config import ConfigError
from server.errors import ApiError
from server.record import record_of
from server.request_id import HEADER

ANY = ("*",)
_OF_PAGES = ("http", "https")
"""Other schemes are those of extensions and desktop programs, which no page can pretend to."""
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s*\"',]+")
_TOKEN = re.compile(r"\*|[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cors:
    """Who may call, how. Raises ConfigError that names the flag. ``*`` alone stands for all."""

    origins: tuple[str, ...]
    methods: tuple[str, ...] = ANY
    headers: tuple[str, ...] = ANY
    credentials: bool = False
    """Whether a page may have cookies and TLS certificates sent along; API keys do not need it."""

    def __post_init__(self) -> None:
        for origin in self.origins:
            if self.origins != ANY and not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"--allowed-origins {origin!r} is no origin: write scheme://host:port, or * alone, and repeat the "
                    "flag for several"
                )
        for flag, names in (("--allowed-methods", self.methods), ("--allowed-headers", self.headers)):
            for name in names:
                if not _TOKEN.fullmatch(name):
                    raise ConfigError(f"{flag} {name!r} is no name: write one, or *, and repeat the flag for several")
        if self.credentials and self.origins == ANY:
            raise ConfigError("--allow-credentials needs origins by name, not --allowed-origins '*'")

    def middleware(self) -> Middleware:
        """Answers preflight requests itself, and adds its headers to every answer of what is inside it."""
        return Middleware(
            CORSMiddleware,
            allow_origins=self.origins,
            allow_methods=self.methods,
            allow_headers=self.headers,
            allow_credentials=self.credentials,
            expose_headers=(HEADER, "retry-after"),
        )


class OriginMiddleware:
    """Answers 403 to web pages of origins that are neither ``named`` nor the server's own.

    CORS keeps such a page from reading an answer, not from having it computed: a browser sends bodies without a content
    type, and forms with files, before it asks. Programs that are no browsers send no ``Origin``.
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
        refusal = ApiError(403, message, code="origin_not_allowed")
        record_of(scope).error = refusal.code
        await refusal.response()(scope, receive, send)

    def _allows(self, origin: str, scope: Scope) -> bool:
        if "*" in self._named or origin in self._named:
            return True
        scheme, _, host = origin.partition("://")  # no host in "null", which is that of files and sandboxes
        return host != "" and (scheme not in _OF_PAGES or host == _header(scope, b"host"))


def _header(scope: Scope, name: bytes) -> str | None:
    found: bytes | None = next((value for key, value in scope["headers"] if key == name), None)
    return None if found is None else found.decode("latin-1")


def cors_of(args: Any) -> Cors | None:
    """What the flags ask for; None: browsers let no page of another origin call. Raises ConfigError."""
    given = {
        "methods": args.allowed_methods and tuple(args.allowed_methods),
        "headers": args.allowed_headers and tuple(args.allowed_headers),
        "credentials": args.allow_credentials,
    }
    given = {name: value for name, value in given.items() if value}
    if args.allowed_origins:
        return Cors(origins=tuple(args.allowed_origins), **given)
    if given:
        flag = "--allow-credentials" if "credentials" in given else f"--allowed-{next(iter(given))}"
        raise ConfigError(f"{flag} needs --allowed-origins")
    return None
