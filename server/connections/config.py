"""uvicorn's configuration with the bounds."""

import logging
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from jaxgen.server.addresses import Callers, proxies
from jaxgen.server.config import DEFAULT_CONFIG, ServerConfig
from jaxgen.server.connections.bounds import UNIX, Bounds
from jaxgen.server.connections.descriptors import make_room, watch
from jaxgen.server.connections.gate import Gate
from jaxgen.server.connections.minute_log import MinuteLog
from jaxgen.server.connections.protocol import ConnectionProtocol
from jaxgen.server.connections.tls import TlsArrival

logger = logging.getLogger("jaxgen.server.connections")

WATCH_SECONDS = 1


class ConnectionConfig(uvicorn.Config):
    """Configures a server of ``app`` with the bounds of ``settings``. ``options``: further ones of uvicorn.

    ``unix``: it listens at a Unix socket, where every caller is trusted as a proxy is.
    """

    def __init__(
        self, app: ASGIApp, settings: ServerConfig = DEFAULT_CONFIG, *, unix: bool = False, **options: Any
    ) -> None:
        limits, networks = settings.connections, proxies(settings.proxy.forwarded_allow_ips)
        super().__init__(
            app,
            ws="none",
            forwarded_allow_ips=[*map(str, networks), *([UNIX] if unix else [])],
            callback_notify=self._watch,
            timeout_notify=WATCH_SECONDS,
            timeout_keep_alive=limits.timeout_keep_alive_s,  # type: ignore[arg-type]  # fractions of a second too
            **options,
        )
        log = MinuteLog(logger)
        gate = Gate(limits.max_connections, limits.max_connections_per_address, Callers(networks), log)
        self.settings = settings
        self.bounds = Bounds(limits, gate, log, unix=unix)

    def load(self) -> None:
        """Load the app and the TLS files, and make room for the connections."""
        super().load()
        bounds = self.bounds
        # Connections are accepted without TLS, so that a handshake is ours to count.
        bounds.tls, self.ssl = self.ssl, None
        protocol_class: Any = partial(ConnectionProtocol if bounds.tls is None else TlsArrival, bounds)
        self.http_protocol_class = protocol_class
        bounds.gate.max_connections = make_room(bounds.limits.max_connections)

    async def _watch(self) -> None:
        watch(self.bounds.log)
