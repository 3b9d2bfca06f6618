"""A connection without a network: what comes and what goes is in the test's hands."""

import asyncio
from typing import Any

from starlette.types import ASGIApp
from uvicorn.server import ServerState

from jaxgen.server.config import DEFAULT_CONFIG, ServerConfig
from jaxgen.server.connections.protocol import ConnectionProtocol
from tests.support.live_server import configured


class Wire(asyncio.Transport):
    """The transport of a connection to ``app``, whose ``protocol`` is the server's. Use it within an event loop."""

    def __init__(self, app: ASGIApp, limits: ServerConfig = DEFAULT_CONFIG) -> None:
        super().__init__()
        config = configured(app, limits)
        config.load()
        self.sent = b""
        self.reading = True
        self.aborted = False
        self.gate = config.bounds.gate
        self.protocol = ConnectionProtocol(config.bounds, config, ServerState(), {})
        self.current: asyncio.Protocol = self.protocol
        self.protocol.connection_made(self)

    async def bring(self, *parts: bytes) -> None:
        """Let parts arrive, each in a read of its own, and the app work."""
        for part in parts:
            self.current.data_received(part)
        await settle()

    async def leave(self) -> None:
        """Let the caller's end be seen."""
        self.current.connection_lost(None)
        await settle()

    def write(self, data: Any) -> None:
        self.sent += data

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self.current = protocol

    def close(self) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


async def settle() -> None:
    """Let all that is ready run."""
    for _ in range(20):
        await asyncio.sleep(0)
