"""Take paths with a slash at their end as those without one, as clients make them of a base URL."""

from starlette.types import ASGIApp, Receive, Scope, Send

from jaxgen.server.middleware.context import route_path


class TrailingSlashMiddleware:
    """Removes one slash from the end of the path of a POST below ``/v1/``; a redirect would drop its body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            path = route_path(scope)
            if path.startswith("/v1/") and path.endswith("/"):
                scope = {**scope, "path": scope["path"].removesuffix("/")}
        await self._app(scope, receive, send)
