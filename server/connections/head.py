"""Rules and bounds of what comes before a request's body."""

from collections.abc import Iterable

import httptools

from jaxgen.server.errors import ApiError, bad_request

MAX_HEAD_BYTES = 64 * 1024
"""Most bytes of a request line and its header fields. The same bound holds for trailers, and for anything else that is
neither body nor its length."""
MAX_FIELDS = 256
"""Most header fields of a request, trailers included."""
MAX_PIPELINED = 32
"""Most requests that wait for the one before them on their connection; after the last of them the connection ends."""
MAX_BEHIND_BYTES = 64 * 1024
"""Most bytes behind a request that are kept until it is answered; then the connection is not read."""
VERSIONS = ("1.0", "1.1")


class Head:
    """Adds up what came of a request's head. Raises ApiError beyond a bound."""

    __slots__ = ("_bytes", "_fields")

    def __init__(self) -> None:
        self._bytes = 0
        self._fields = 0

    def add_url(self, length: int) -> None:
        self._bytes += length
        if self._bytes > MAX_HEAD_BYTES:
            raise ApiError(414, f"The request line is longer than {MAX_HEAD_BYTES} bytes.", code="uri_too_long")

    def add_field(self, length: int) -> None:
        self._bytes += length + 4  # a colon, a space and the line's end
        self._fields += 1
        if self._bytes > MAX_HEAD_BYTES or self._fields > MAX_FIELDS:
            raise too_long()


def too_long() -> ApiError:
    message = f"The request has more than {MAX_HEAD_BYTES} bytes of header fields, or more than {MAX_FIELDS} of them."
    return ApiError(431, message, code="headers_too_large")


def check(method: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Check a complete head. Raises ApiError."""
    if version not in VERSIONS:
        raise wrong_version()
    if method == b"CONNECT":
        raise ApiError(405, "This server is not a proxy: take it out of the proxies of your client.")
    hosts = sum(name == b"host" for name, _ in headers)
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise bad_request(f"The request must have one Host header, not {hosts}.")


def wrong_version() -> ApiError:
    return ApiError(505, f"This server speaks HTTP/{' and HTTP/'.join(VERSIONS)}.", code="http_version_not_supported")


def as_refusal(error: httptools.HttpParserError) -> ApiError:
    """Return what to answer to bytes that the parser, or one of our own checks inside it, refused."""
    if isinstance(error.__context__, ApiError):
        return error.__context__
    reason = str(error)
    if reason == "Invalid HTTP version" or "HTTP/2" in reason:
        return wrong_version()
    return bad_request("This is not a valid HTTP request.", code="invalid_http_request")


def without_upgrade(parser: httptools.HttpRequestParser, url: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the head that has been parsed, without the field Upgrade."""
    lines = [parser.get_method() + b" " + url + b" HTTP/" + parser.get_http_version().encode()]
    lines += [name + b": " + value for name, value in headers if name != b"upgrade"]
    return b"\r\n".join((*lines, b"", b""))
