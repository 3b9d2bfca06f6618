"""End a connection so that its caller sees the last answer."""

import asyncio
from collections.abc import Callable, Iterable
from http import HTTPStatus

from jaxgen.server.errors import ApiError

LINGER_SECONDS = 30.0
LINGER_BYTES = 256 * 2**20
"""How much longer, and how much more, is read of a request that has been answered already. A client that is still
sending when its connection is closed may lose the answer: many read it only after they have sent all."""

REFUSED_SECONDS = 2.0
"""The same for connections beyond the bounds: their descriptors are what is short."""


def answer(error: ApiError, headers: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """Return the HTTP response of ``error``, after which the connection ends. ``headers``: further ones."""
    response = error.response()
    lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}".encode()]
    lines += [name + b": " + value for name, value in (*headers, *response.raw_headers)]
    return b"\r\n".join((*lines, b"connection: close", b"", bytes(response.body)))


class LingeringClose(asyncio.Protocol):
    """Takes over a connection after its last answer: closes it when the caller does, or at a bound.

    Until then it reads and drops whatever comes. To close a socket with unread bytes resets the connection, and a reset
    discards the answer at the caller's end.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        lost: Callable[[Exception | None], None],
        *,
        seconds: float = LINGER_SECONDS,
        most_bytes: int = LINGER_BYTES,
    ) -> None:
        self._transport = transport
        self._lost = lost
        self._left = most_bytes
        self._timer = asyncio.get_running_loop().call_later(seconds, transport.abort)
        transport.set_protocol(self)
        if transport.can_write_eof():
            transport.write_eof()
            transport.resume_reading()
        else:  # TLS, whose own end waits for the caller's, and drops what comes until then
            transport.close()

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._lost(exc)
