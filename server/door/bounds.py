"""The bounds of one server, as its connections share them."""

import ssl
from dataclasses import dataclass

from jaxgen.server.config import ServerConfig
from jaxgen.server.door.gate import Gate
from jaxgen.server.door.minute_log import MinuteLog


@dataclass(slots=True)
class Bounds:
    """Limits, the count of connections, the log of what callers do wrong, and how to do TLS (None: no TLS)."""

    limits: ServerConfig
    gate: Gate
    log: MinuteLog
    tls: ssl.SSLContext | None = None
