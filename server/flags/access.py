"""Control who may call the server: the address it listens at, and the keys of ``--api-key``."""

import argparse
import ipaddress
import logging
import socket
from collections.abc import Sequence

from jaxgen.core.errors import ConfigError
from jaxgen.server.config import Access

logger = logging.getLogger(__name__)


def host(text: str) -> str:
    """Parse ``--host``. Raises ArgumentTypeError for an empty one, which would mean all addresses of the machine."""
    if not text.strip():
        raise argparse.ArgumentTypeError(
            "it is empty: write 127.0.0.1 to be reached from this machine, 0.0.0.0 or :: to be reached from others"
        )
    return text.strip()


def api_keys(given: Sequence[str]) -> tuple[str, ...]:
    """Return the keys without the white space around them, as a file or a shell may leave it.

    Raises ConfigError that says which key cannot be one, and never the key.
    """
    keys = tuple(key.strip().removeprefix("\ufeff").strip() for key in given)
    for number, key in enumerate(keys, 1):
        which = "--api-key" if len(keys) == 1 else f"--api-key, key {number} of {len(keys)},"
        if not key:
            raise ConfigError(f"{which} is empty: give a key, or leave the flag out")
        if key.split() != [key]:
            raise ConfigError(f"{which} has white space inside: repeat the flag for several keys")
        try:
            key.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"{which} is not valid UTF-8") from error
    return keys


def warn_if_open(listener: socket.socket, access: Access, *, certificates: bool) -> None:
    """Warn if others than this machine reach the server, and it asks them for nothing.

    ``certificates``: callers must show one.
    """
    if listener.family == socket.AF_UNIX:  # its file's rights say who may
        return
    address, port, *_ = listener.getsockname()
    asks = access.asks_for_keys or certificates
    if not asks and not ipaddress.ip_address(address).is_loopback:
        logger.warning(
            "ANYONE WHO REACHES %s PORT %d MAY USE THIS SERVER: it listens beyond this machine and asks for no API "
            "key. Set --api-key-file FILE or JAXGEN_API_KEY, or listen at --host 127.0.0.1",
            "ANY ADDRESS OF THIS MACHINE," if address in ("0.0.0.0", "::") else address,
            port,
        )
