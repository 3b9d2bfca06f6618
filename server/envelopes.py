"""Errors in the shape of the API that is called: OpenAI's, or Anthropic's for callers of its routes."""

from collections.abc import Iterable
from typing import Any

from jaxgen.server.errors import ApiError

MESSAGES = "/v1/messages"
VERSION = "anthropic-version"
"""The header by which Anthropic's clients ask for answers in its shape, on routes that both APIs have."""
OVERLOADED = 529
"""Anthropic's status for a server that has too much to do. Its 429 is for a caller who asks too much."""
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}
"""Anthropic's ``type`` of errors, by status; of others it depends on whose fault they are."""
_BUSY = {"queue_full", "would_be_late", "too_many_bodies"}
"""Codes of errors for which the load of the server is the reason."""


def of_messages(path: str) -> bool:
    """Whether a path is one of Anthropic's routes, or below it."""
    return path == MESSAGES or path.startswith(f"{MESSAGES}/")


def speaks_anthropic(path: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the caller of a path gets answers in Anthropic's shape. ``headers``: raw ones of the request."""
    return of_messages(path) or any(name.lower() == VERSION.encode() for name, _ in headers)


def anthropic_error(error: ApiError, request_id: str | None = None) -> tuple[int, dict[str, Any]]:
    """Return the status and the body of an error in Anthropic's shape. ``request_id`` None: it has none."""
    status = OVERLOADED if error.code in _BUSY else error.status
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    body: dict[str, Any] = {"type": kind, "message": error.message}
    if error.code is not None:
        body["details"] = {"error_code": error.code}
    return status, {"type": "error", "error": body, "request_id": request_id}
