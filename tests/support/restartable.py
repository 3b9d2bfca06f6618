"""A server in this process that can stop and start again at the same port, as after a restart."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

from starlette.types import ASGIApp

from jaxgen.server.config import DEFAULT_CONFIG, ServerConfig
from tests.support.live_server import configured, serve


class Restartable:
    """Serves ``app`` from ``start`` to ``stop``; another ``app`` may be set between them."""

    def __init__(self, app: ASGIApp, limits: ServerConfig = DEFAULT_CONFIG) -> None:
        self.app = app
        self._limits = limits
        self._port = 0
        self._stack = ExitStack()
        self.url = ""
        """Without a slash at its end; the same after a restart."""

    def start(self) -> None:
        config = configured(self.app, self._limits, port=self._port)
        self.url = self._stack.enter_context(serve(config))
        self._port = urlsplit(self.url).port or 0

    def stop(self) -> None:
        """End the server, and within about a second the connections to it."""
        self._stack.close()


@contextmanager
def restartable(app: ASGIApp, limits: ServerConfig = DEFAULT_CONFIG) -> Iterator[Restartable]:
    """A server that has started."""
    server = Restartable(app, limits)
    server.start()
    try:
        yield server
    finally:
        server.stop()
