"""Answer with an error in the shape that the caller of a route expects."""

from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from jaxgen.server.envelopes import anthropic_error, speaks_anthropic
from jaxgen.server.errors import ApiError
from jaxgen.server.middleware.context import context_of


def refused(scope: Scope, error: ApiError) -> Response:
    """Return the response with an error, which the request's record then has."""
    context = context_of(scope)
    context.error = error.code or error.kind
    if not speaks_anthropic(context.path, scope["headers"]):
        return error.response()
    status, body = anthropic_error(error, context.request_id)
    return JSONResponse(body, status_code=status, headers=error.headers)
