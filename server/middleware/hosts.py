"""Restrict the names by which a server without keys may be called: a page's own name may lead to it (DNS rebinding)."""

import ipaddress
from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from jaxgen.server.errors import ApiError
from jaxgen.server.middleware.refusals import refused

_LOCAL = "localhost"


class HostMiddleware:
    """Answers 403 to requests whose ``Host`` is a name that is neither local nor ``allowed``.

    A page of http://evil.example whose name leads to this machine is of the server's own origin to the browser, and may
    read all answers. Only its ``Host`` tells. Addresses are not names, and ``localhost`` leads nowhere else. Without
    ``allowed`` only connections to a loopback address are checked: others come from other machines anyway.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str] = ()) -> None:
        """``allowed``: names, with ``*.`` in front for all below one; ``*``: all."""
        self._app = app
        self._exact = frozenset(allowed)
        self._below = tuple(name[1:] for name in allowed if name.startswith("*."))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._may_pass(scope):
            await self._app(scope, receive, send)
            return
        name = _host(scope)[:200]
        message = (
            f"This server is not to be called as {name!r}: start it with --allowed-hosts {name}, or with an API key. "
            "A proxy that calls it by another name than its callers can also pass their Host on."
        )
        await refused(scope, ApiError(403, message, code="host_not_allowed"))(scope, receive, send)

    def _may_pass(self, scope: Scope) -> bool:
        if "*" in self._exact or not (self._exact or _is_loopback(scope)):
            return True
        name = _host(scope)
        if not name or name == _LOCAL or name.endswith(f".{_LOCAL}") or _address(name) is not None:
            return True
        return name in self._exact or name.endswith(self._below)


def _host(scope: Scope) -> str:
    """Return the name in ``Host``, without port, in lower case; empty where there is none."""
    host = next((value for key, value in scope["headers"] if key == b"host"), b"").decode("latin-1").lower()
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return name.removesuffix(".")


def _is_loopback(scope: Scope) -> bool:
    """Whether a request came to a loopback address of this machine."""
    server = scope.get("server") or ("", None)
    address = _address(str(server[0]))
    mapped = getattr(address, "ipv4_mapped", None)
    return address is not None and (mapped or address).is_loopback


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None
