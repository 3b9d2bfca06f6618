"""Answer errors that routes and middleware raise, in OpenAI's shape."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from jaxgen.server.errors import INTERNAL_MESSAGE, ApiError, as_api_error
from jaxgen.server.middleware.context import context_of


async def http_exception(_: Request, error: Exception) -> Response:
    """Starlette's own refusals: unknown route, wrong method."""
    assert isinstance(error, HTTPException)
    messages = {404: "There is no such route.", 405: "This route does not take that method."}
    return ApiError(error.status_code, messages.get(error.status_code, error.detail), headers=error.headers).response()


async def api_error(request: Request, error: Exception) -> Response:
    return _recorded(request.scope, error).response()


def _recorded(scope: Scope, error: Exception) -> ApiError:
    told = as_api_error(error)
    context_of(scope).error = told.code or told.kind
    return told


async def client_left(_: Request, __: Exception) -> Response:
    """Nobody reads this; 499 is what proxies log for it."""
    return Response(status_code=499)


async def unexpected_error(_: Request, __: Exception) -> Response:
    """For the outermost handler, after which Starlette raises the error again for the HTTP server to log."""
    return ApiError(500, INTERNAL_MESSAGE).response()


class UnexpectedErrorMiddleware:
    """Answers 500 to what the routes raise, inside all other middleware: so the answer has what they add to it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            if scope["type"] != "http":
                raise
            told = _recorded(scope, error)
            # After that the HTTP server breaks off the connection of an answer without an end.
            if context_of(scope).status is None:
                await told.response()(scope, receive, send)
