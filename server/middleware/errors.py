"""Answer errors that routes and middleware raise, in the format of the API that is called."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from jaxgen.server.errors import INTERNAL_MESSAGE, ApiError, as_api_error
from jaxgen.server.middleware.context import context_of
from jaxgen.server.middleware.nearest_route import nearest_route
from jaxgen.server.middleware.refusals import refused


async def http_exception(request: Request, error: Exception) -> Response:
    """Answer Starlette's own errors: unknown route, wrong method."""
    assert isinstance(error, HTTPException)
    message = error.detail
    if error.status_code == 404:
        near = nearest_route(request.scope, request.app.routes)
        message = "There is no such route" + ("." if near is None else f"; the nearest is {near}.")
    elif error.status_code == 405:
        message = "This route does not take that method."
    return refused(request.scope, ApiError(error.status_code, message, headers=error.headers))


async def api_error(request: Request, error: Exception) -> Response:
    return refused(request.scope, as_api_error(error))


async def client_left(_: Request, __: Exception) -> Response:
    """Answer a caller who has disconnected; 499 is the status that proxies log."""
    return Response(status_code=499)


async def unexpected_error(request: Request, _: Exception) -> Response:
    """Answer 500 in the outermost handler; Starlette then raises the error again for the HTTP server to log."""
    return refused(request.scope, ApiError(500, INTERNAL_MESSAGE))


class UnexpectedErrorMiddleware:
    """Answers unexpected errors of routes with 500. It is the innermost middleware, so that the others see the answer
    and add their headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            if scope["type"] != "http":
                raise
            answer = refused(scope, as_api_error(error))
            # Once a response has begun, no answer is possible: the HTTP server closes the connection.
            if context_of(scope).status is None:
                await answer(scope, receive, send)
