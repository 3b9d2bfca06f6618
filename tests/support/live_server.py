"""A real uvicorn on loopback, in a thread, for as long as a test needs it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from jaxgen.server.config import DEFAULT_CONFIG, ServerConfig
from jaxgen.server.connections.config import ConnectionConfig

START_SECONDS = 120.0


def configured(
    app: ASGIApp, limits: ServerConfig = DEFAULT_CONFIG, *, port: int = 0, **options: Any
) -> ConnectionConfig:
    """The configuration that ``serve`` makes of these arguments. ``port``: 0 takes a free one."""
    # A logging configuration of uvicorn's own would close the handlers that others have, and with them pytest's stderr.
    quiet: dict[str, Any] = {"log_level": "error", "log_config": None}
    return ConnectionConfig(app, limits, port=port, lifespan="off", timeout_graceful_shutdown=1, **quiet, **options)


@contextmanager
def serve(app: ASGIApp | ConnectionConfig, limits: ServerConfig = DEFAULT_CONFIG, **options: Any) -> Iterator[str]:
    """The base URL, without a slash at its end. ``limits``: bounds on connections; ``options``: further ones of
    uvicorn."""
    config = app if isinstance(app, ConnectionConfig) else configured(app, limits, **options)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="live-server")
    thread.start()
    try:
        deadline = monotonic() + START_SECONDS
        while not server.started:
            assert thread.is_alive(), "the server ended while starting"
            assert monotonic() < deadline, "the server did not start in time"
            sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"{'https' if config.is_ssl else 'http'}://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(START_SECONDS)
        assert not thread.is_alive(), "the server did not stop"
