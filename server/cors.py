"""CORS: which web pages may call the server from a browser. None, unless their origins are named."""

import re
from dataclasses import dataclass
from typing import Any

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from jaxgen.config import ConfigError
from server.request_id import HEADER

ANY = ("*",)
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
