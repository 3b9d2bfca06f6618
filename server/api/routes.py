"""Join the handlers of a path to one route."""

from collections.abc import Awaitable, Callable, Mapping

from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

type Handler = Callable[[Request], Awaitable[Response]]


def route(path: str, handlers: Mapping[str, Handler], middleware: Middleware) -> Route:
    """Return one route for all methods of a path, so that its 405 names them all."""

    async def handle(request: Request) -> Response:
        return await handlers["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, handle, methods=list(handlers), middleware=[middleware])
