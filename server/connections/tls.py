"""TLS handshakes, with the place of a connection taken before them."""

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.server import ServerState

from jaxgen.server.connections.bounds import Bounds
from jaxgen.server.connections.protocol import ConnectionProtocol


class TlsArrival(asyncio.Protocol):
    """A connection until its handshake is done; then a ConnectionProtocol takes over.

    The event loop would do handshakes itself, but tells no protocol of one that has not ended, or failed: such
    connections could not be counted.
    """

    def __init__(
        self,
        bounds: Bounds,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._bounds = bounds
        self._config = config
        self._state = server_state
        self._app_state = app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        arrived, peer = self._loop.time(), get_remote_addr(transport)
        slot = self._bounds.gate.admit(peer[0] if peer else None)
        if slot is None:
            transport.abort()
            return
        self._transport = transport
        protocol = ConnectionProtocol(
            self._bounds, self._config, self._state, self._app_state, self._loop, slot=slot, arrived=arrived
        )
        connections: set[Any] = self._state.connections
        connections.add(self)  # so that the server's end ends the handshake
        self._task = asyncio.Task(self._shake_hands(transport, protocol), loop=self._loop, eager_start=True)
        self._task.add_done_callback(lambda _: self._shaken(protocol))

    async def _shake_hands(self, transport: asyncio.Transport, protocol: ConnectionProtocol) -> None:
        assert self._bounds.tls is not None
        seconds = self._bounds.limits.header_timeout_s
        encrypted = await self._loop.start_tls(
            transport, protocol, self._bounds.tls, server_side=True, ssl_handshake_timeout=seconds
        )
        if encrypted is not None:
            protocol.connection_made(encrypted)

    def _shaken(self, protocol: ConnectionProtocol) -> None:
        """Note the end of the handshake, good or bad. What was wrong with it is the caller's affair."""
        assert self._task is not None
        assert self._transport is not None
        connections: set[Any] = self._state.connections
        connections.discard(self)
        if self._task.cancelled() or self._task.exception() is not None:
            self._transport.abort()
            protocol.connection_lost(None)

    def cut(self, *, late: bool) -> None:
        """End the connection at once: there is nothing to send yet."""
        del late
        self.shutdown()

    def shutdown(self) -> None:
        if self._transport is not None:
            self._transport.abort()
