"""Take requests with or without the prefix that a proxy in front has (``--root-path``)."""

from starlette.types import ASGIApp, Receive, Scope, Send

from jaxgen.server.middleware.context import route_path


class RootPathMiddleware:
    """Makes ``prefix`` a part of where the app is mounted, whether the proxy passed it on or stripped it."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = route_path(scope)
            if path == self._prefix or path.startswith(f"{self._prefix}/"):
                path = path.removeprefix(self._prefix)
            root = scope.get("root_path", "") + self._prefix
            scope = {**scope, "root_path": root, "path": root + path}
        await self._app(scope, receive, send)
