"""Read a request's body up to a limit, and parse it as a JSON object."""

from typing import Any

import pydantic_core
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from jaxgen.server.errors import ApiError, bad_request


async def read_json_object(scope: Scope, receive: Receive, max_bytes: int) -> dict[str, Any]:
    """Return the body as a dict.

    Raises ApiError: 415 for a content type other than JSON, 413 for a body over ``max_bytes``, 400 for a body that is
    no JSON object; ClientDisconnect when the caller disconnects.

    A missing Content-Type is taken as JSON. Other types are refused, even where the body is JSON: a browser sends
    text/plain and forms to any address without a preflight request. (It also sends a body without a type, but with the
    page's origin: server/middleware/cors.py.)
    """
    headers = Headers(scope=scope)
    kind = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, f"Content-Type must be application/json, not {kind!r}.")
    return parse_json_object(await _read(headers, receive, max_bytes))


async def _read(headers: Headers, receive: Receive, max_bytes: int) -> bytes:
    too_long = ApiError(413, f"The body is longer than {max_bytes} bytes.")
    announced = headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise too_long
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise too_long
        if not message.get("more_body", False):
            return bytes(body)


def parse_json_object(body: bytes) -> dict[str, Any]:
    """Parse a strict JSON object: UTF-8, no NaN or Infinity, no lone surrogates, at most 200 levels deep.

    Raises ApiError 400.
    """
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise bad_request(f"The body is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise bad_request("The body must be a JSON object.")
    return value
