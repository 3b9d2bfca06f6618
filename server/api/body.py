"""Read requests' bodies up to limits, and parse them as JSON objects."""

import codecs
import re
from typing import Any

import pydantic_core
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from jaxgen.server.errors import ApiError, bad_request

FREE_BYTES = 64 * 1024
"""Bytes of each body that count for nothing: as much is buffered for any connection, and those who send long bodies
slowly must not keep short ones out."""
RETRY_AFTER_SECONDS = 5

_PAIR = rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPES = re.compile(_PAIR + rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL)
"""Finds escapes in a JSON text; the group has half of a surrogate pair."""


class Bodies:
    """Reads bodies of up to ``max_bytes`` each, and of up to ``max_arriving`` together while they arrive.

    A body that arrives alone may be as long as any.
    """

    def __init__(self, max_bytes: int, max_arriving: int) -> None:
        self._max_bytes = max_bytes
        self._max_arriving = max_arriving
        self._arriving = 0
        """Bytes of all unfinished bodies, without what is free of each."""

    async def read_json_object(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        """Return the body as a dict.

        Raises ApiError. 415: a content type other than JSON, or a compressed body. 413: a body that is too long.
        503 while too much of other bodies is arriving. 400 for a body that is not a JSON object. Raises
        ClientDisconnect when the caller disconnects.

        A missing Content-Type is taken as JSON. Other types are refused, even where the body is JSON: a browser sends
        text/plain and forms to any address without a preflight request. (It also sends a body without a type, but with
        the page's origin: server/middleware/cors.py.)
        """
        headers = Headers(scope=scope)
        kind, _, options = headers.get("content-type", "application/json").partition(";")
        kind = kind.strip().lower()
        check_encoding(headers)
        if kind != "application/json":
            raise ApiError(415, f"Content-Type must be application/json, not {kind!r}.")
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > self._max_bytes:
            raise self._too_long()
        return parse_json_object(await self._read(receive), options.strip())

    async def _read(self, receive: Receive) -> bytes:
        body, counted = bytearray(), 0
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                body += message.get("body", b"")
                if len(body) > self._max_bytes:
                    raise self._too_long()
                if not message.get("more_body", False):
                    return bytes(body)
                more = max(0, len(body) - FREE_BYTES) - counted
                self._arriving += more
                counted += more
                if more and self._arriving > max(self._max_arriving, counted):
                    raise _too_many()
        finally:
            self._arriving -= counted

    def _too_long(self) -> ApiError:
        return ApiError(413, f"The body is longer than {self._max_bytes} bytes (--max-body-bytes).")


def _too_many() -> ApiError:
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    return ApiError(503, "Too many long bodies are arriving.", code="too_many_bodies", headers=headers)


def check_encoding(headers: Headers) -> None:
    """Raise ApiError 415 for a body that is compressed: bytes that come must bound what they may cost."""
    coding = headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        raise ApiError(
            415,
            f"Content-Encoding is {coding[:100]!r}: this server reads no compressed bodies; send it as it is.",
            headers={"Accept-Encoding": "identity"},
        )


def parse_json_object(body: bytes, options: str = "") -> dict[str, Any]:
    """Parse a strict JSON object: UTF-8, no NaN or Infinity, no lone surrogates, at most 200 levels deep.

    A byte order mark before it, as some programs on Windows write, is left out. ``options``: of the Content-Type, which
    errors repeat. Raises ApiError 400.
    """
    # JSON begins with two ASCII characters, and has no zero byte in UTF-8.
    if body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in body[:2]:
        raise bad_request("The body is UTF-16 or UTF-32: send UTF-8.")
    body = body.removeprefix(codecs.BOM_UTF8)
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise bad_request(_fault(body, options) or f"The body is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise bad_request("The body must be a JSON object.")
    return value


def _fault(body: bytes, options: str) -> str:
    """Return what is wrong with the characters of a body that is not valid JSON; empty: nothing is."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        charset = f", which Content-Type says ({options[:100]})" if options else ""
        return f"The body is not UTF-8: byte 0x{body[error.start]:02x} at position {error.start}{charset}. Send UTF-8."
    half = next((escape for escape in _ESCAPES.finditer(body) if escape[1]), None)
    if half is None:
        return ""
    return (
        f"The body has half of a surrogate pair, {half[0].decode()} at position {half.start()}: send both halves, or "
        "the character itself."
    )
