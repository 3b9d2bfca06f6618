"""Take requests with or without the prefix that a proxy in front has (``--root-path``)."""

from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from jaxgen.server.middleware.context import route_path


class RootPathMiddleware:
    """Makes ``prefix`` a part of where the app is mounted, whether the proxy passed it on or stripped it.

    ``kept``: paths of the app that may begin like the prefix, as ``/live/live.js`` like ``/live``: they were stripped.
    The prefix alone is ``/``.
    """

    def __init__(self, app: ASGIApp, prefix: str, kept: Collection[str] = ()) -> None:
        self._app = app
        self._prefix = prefix
        self._kept = frozenset(kept)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = route_path(scope)
            if path == self._prefix:
                path = "/"
            elif path.startswith(f"{self._prefix}/") and path not in self._kept:
                path = path.removeprefix(self._prefix)
            root = scope.get("root_path", "") + self._prefix
            scope = {**scope, "root_path": root, "path": root + path}
        await self._app(scope, receive, send)
