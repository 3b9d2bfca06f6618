"""The bounds of one server, as its connections share them."""

import ssl
from dataclasses import dataclass

from jaxgen.server.connections.gate import Gate
from jaxgen.server.connections.minute_log import MinuteLog
from jaxgen.server.limits import Connections

UNIX = "unix"
"""The address, in the log too, of callers who come by a Unix socket."""


@dataclass(slots=True)
class Bounds:
    """Limits, the count of connections, the log of what callers do wrong, and how to do TLS (None: no TLS).

    ``unix``: connections are of a Unix socket.
    """

    limits: Connections
    gate: Gate
    log: MinuteLog
    tls: ssl.SSLContext | None = None
    unix: bool = False
