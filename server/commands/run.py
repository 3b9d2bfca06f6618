"""Run the HTTP server around an engine until it is told to stop, or the engine dies."""

import asyncio
import contextlib
import faulthandler
import logging
import signal
import socket
import tempfile
from dataclasses import dataclass
from math import ceil
from typing import Any, Protocol

import uvicorn

from jaxgen.client import EngineClient
from jaxgen.server.commands.announcement import pace_line, place_of, ready_lines
from jaxgen.server.connections.config import ConnectionConfig
from jaxgen.server.middleware.lifecycle import Lifecycle

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05
FLUSH_SECONDS = 1.0
"""Time that the last bytes of answers get, once there is no other."""
STEP_SECONDS = 5.0
"""Time beyond the shutdown timeout that the engine's last step gets; an engine that takes longer hangs."""


class ServedEngine(EngineClient, Protocol):
    """An engine that has been started and can be stopped."""

    def stop(self, timeout: float | None = None) -> bool:
        """End the engine's thread after the step under way. Return whether it ended in time (None: wait for ever)."""
        ...


@dataclass(frozen=True, slots=True)
class Ending:
    """The way in which a server has ended."""

    code: int
    """The process's exit code."""
    message: str
    """The last line."""
    engine_ended: bool = True
    """Whether the engine's thread has ended; otherwise it may be in the midst of a program and the process must not
    wait for it."""


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: on SIGTERM they would stop it before running requests are done.

    Callers who have not read all of their answers when it ends have time until ``cut_at``, by the event loop's clock.
    """

    config: ConnectionConfig
    cut_at = 0.0

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield

    def close_idle(self) -> None:
        """Close the connections without a request; the others close after their answers."""
        for connection in tuple(self.server_state.connections):
            connection.shutdown()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, and end the open ones and the lifespan."""
        left = max(0.0, self.cut_at - asyncio.get_running_loop().time())
        # uvicorn's own end of requests is a traceback each: by then they must be over.
        self.config.timeout_graceful_shutdown = ceil(left + 2 * FLUSH_SECONDS)
        cutting = asyncio.create_task(self._cut())
        try:
            await super().shutdown(sockets)
        finally:
            cutting.cancel()

    async def _cut(self) -> None:
        """Cut the connections that do not close: those with nothing left to send soon, all at ``cut_at``."""
        await asyncio.sleep(FLUSH_SECONDS)
        while True:
            late = asyncio.get_running_loop().time() >= self.cut_at
            connections: set[Any] = self.server_state.connections  # of server.connections
            for connection in tuple(connections):
                connection.cut(late=late)
            await asyncio.sleep(POLL_SECONDS)


async def run(
    engine: ServedEngine,
    server: Server,
    lifecycle: Lifecycle,
    listener: socket.socket,
    shutdown_timeout: float,
    stops: "asyncio.Queue[int]",
) -> Ending:
    """Serve until ``stops`` has the number of a signal (0), or until the engine dies (1; 2 if it never was ready).

    The first signal drains: /ready fails, new requests get 503, running ones may finish within the timeout. A second
    signal gives them up at once. Stops the engine; one that hangs is an Ending with code 1.
    """
    drained = None
    try:
        drained, was_ready = await _serve(engine, server, lifecycle, listener, shutdown_timeout, stops)
    finally:
        state = engine.status().state
        left = max(0.0, server.cut_at - asyncio.get_running_loop().time()) + STEP_SECONDS
        ended = await asyncio.to_thread(engine.stop, 0.0 if state == "starting" else left)
    if drained is None:
        return Ending(1 if was_ready else 2, engine.status().reason or "the engine has stopped", ended)
    if state == "starting":
        return Ending(0, f"ended by {drained.by} while starting", ended)
    message = drained.message(asyncio.get_running_loop().time())
    if ended:
        return Ending(0, message)
    logger.error("the engine's step does not end; this is what the threads do:\n%s", _stacks())
    return Ending(1, f"{message}, and the engine hangs", ended)


async def _serve(
    engine: ServedEngine,
    server: Server,
    lifecycle: Lifecycle,
    listener: socket.socket,
    shutdown_timeout: float,
    stops: "asyncio.Queue[int]",
) -> tuple["_Drained | None", bool]:
    """Serve; return how it was drained (None: the engine died), and whether the engine was ready."""
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    announcing = asyncio.create_task(_announce(engine, listener, server.config))
    draining = asyncio.create_task(_drain(stops, server, lifecycle, shutdown_timeout))
    died = asyncio.create_task(wait_for_death(engine))
    await asyncio.wait({serving, draining, died}, return_when=asyncio.FIRST_COMPLETED)
    was_ready, drained = announcing.done(), draining.result() if draining.done() else None
    for task in (announcing, draining, died):
        task.cancel()
    server.should_exit = True
    hurrying = asyncio.create_task(_hurry(stops, server))
    await serving
    hurrying.cancel()
    return drained, was_ready


@dataclass(frozen=True, slots=True)
class _Drained:
    by: str
    """The signal's name."""
    begin: float
    cut_off: int
    """Requests that were given up."""

    def message(self, now: float) -> str:
        requests = "1 request was" if self.cut_off == 1 else f"{self.cut_off or 'no'} requests were"
        return f"ended by {self.by}: the drain took {now - self.begin:.1f} s, {requests} cut off"


async def _drain(
    stops: "asyncio.Queue[int]", server: Server, lifecycle: Lifecycle, shutdown_timeout: float
) -> _Drained:
    """Wait for a signal; then let the running requests end, and cancel the rest."""
    by = signal.Signals(await stops.get()).name
    loop = asyncio.get_running_loop()
    begin = loop.time()
    lifecycle.draining = True
    server.close_idle()
    if lifecycle.num_requests:
        text = "%s: finishing the requests under way, %d, for at most %g s (signal again to give them up)"
        logger.info(text, by, lifecycle.num_requests, shutdown_timeout)
    idle = asyncio.create_task(wait_idle(lifecycle))
    again = asyncio.create_task(stops.get())
    await asyncio.wait({idle, again}, timeout=shutdown_timeout, return_when=asyncio.FIRST_COMPLETED)
    idle.cancel()
    again.cancel()
    server.cut_at = loop.time() + FLUSH_SECONDS
    if not again.done():
        server.cut_at = max(server.cut_at, begin + shutdown_timeout)
    return _Drained(by, begin, lifecycle.cut_off())


async def _hurry(stops: "asyncio.Queue[int]", server: Server) -> None:
    """Stop waiting, at a further signal, for callers who have not read all of their answers."""
    await stops.get()
    server.cut_at = 0.0


async def wait_idle(lifecycle: Lifecycle) -> None:
    """Return once no request is under way."""
    while lifecycle.num_requests > 0:
        await asyncio.sleep(POLL_SECONDS)


async def wait_for_death(engine: EngineClient) -> None:
    """Return once the engine is dead."""
    while engine.status().state != "dead":
        await asyncio.sleep(POLL_SECONDS)


async def _announce(engine: EngineClient, listener: socket.socket, config: ConnectionConfig) -> None:
    while engine.status().state != "ready":
        await asyncio.sleep(POLL_SECONDS)
    place = place_of(listener, "https" if config.is_ssl else "http")
    print("\n".join(ready_lines(engine.model, config.settings, place)), flush=True)
    logger.debug("%s", pace_line(engine.stats()))


def _stacks() -> str:
    """Return what all threads are doing."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read()
