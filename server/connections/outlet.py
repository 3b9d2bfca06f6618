"""The transport that uvicorn's request cycle writes to, and the options of its socket."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Outlet:
    """A transport whose ``close`` is ours, since uvicorn closes while the rest of a request is still coming."""

    __slots__ = ("close", "closing", "get_extra_info", "pause_reading", "resume_reading", "write")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.close: Callable[[], None] = close
        self.closing = False
        # The transport's own methods: a write costs no further call.
        self.write: Callable[[bytes | bytearray | memoryview], None] = transport.write
        self.get_extra_info = transport.get_extra_info
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading

    def is_closing(self) -> bool:
        return self.closing

    def shut(self) -> None:
        """Drop what is written from now on, and let go of the connection, so that no garbage collector is needed."""
        self.closing = True
        self.write = self.close = _nothing


def _nothing(*_: object) -> None:
    pass


def send_undelimited(cycle: RequestResponseCycle) -> None:
    """Make a cycle answer without chunks: a client of HTTP/1.0 knows none, and reads up to the connection's end."""
    send = cycle.send
    cycle.chunked_encoding = False

    async def undelimited(message: Any) -> None:
        if message["type"] == "http.response.body":
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = undelimited  # type: ignore[method-assign]


def limit_unread(transport: asyncio.Transport, seconds: float) -> None:
    """Let the kernel end a connection whose caller takes nothing of what is buffered for it, closed or not."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux
    connection: socket.socket | None = transport.get_extra_info("socket")
    if option is not None and connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, option, min(int(1000 * seconds), 2**31 - 1))
