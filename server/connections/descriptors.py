"""File descriptors: as many as the connections need, and a word in the log when there are none."""

import errno
import logging
import os
import resource

from jaxgen.server.connections.gate import MAX_REFUSALS
from jaxgen.server.connections.minute_log import MinuteLog

logger = logging.getLogger(__name__)

SPARE = 512
"""Descriptors for all else: files, batches, the engine, a listener."""


def make_room(max_connections: int) -> int:
    """Raise the soft limit of descriptors for ``max_connections`` connections, up to the hard limit.

    Return the number of connections with room. The event loop would reset further ones without a response.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max_connections + MAX_REFUSALS + SPARE
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed == needed:
        return max_connections
    room = max(1, allowed - MAX_REFUSALS - SPARE, allowed // 2)
    logger.warning(
        "--max-connections %d needs %d file descriptors and %d are allowed (ulimit -Hn): at most %d connections",
        max_connections,
        needed,
        hard,
        room,
    )
    return min(room, max_connections)


def watch(log: MinuteLog) -> None:
    """Log it when no descriptor is left: new connections are reset then, and the event loop does not say so."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        log.say("descriptors", f"new connections are refused: {error.strerror} (ulimit -n)")
