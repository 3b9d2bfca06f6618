"""Publish events of blocks over ZeroMQ, from a thread of its own, and send again what a subscriber missed."""

import logging
import socket
import threading
import time
from collections import abc, deque
from contextlib import suppress
from typing import Any

import zmq

from jaxgen.cache.block_log import AllBlocksCleared, BlockEvent
from jaxgen.core.errors import ConfigError
from jaxgen.core.stats import KVEventStats
from jaxgen.kv_events.config import FLAG, KVEventsConfig
from jaxgen.kv_events.wire import encode

logger = logging.getLogger(__name__)

END = (-1).to_bytes(8, "big", signed=True)
"""Sequence number of the message that ends a replay."""
LINGER_MS = 1000
_BOUND = ("*", "::", "ipc://", "inproc://")


class ZmqPublisher:
    """A BlockEventSink: batches with numbers from 0, of which the first says that everything before is void.

    A message has three frames: topic, number (8 bytes, big-endian), payload. Who asks the other socket with the first
    number that it lacks gets number and payload of each batch that is buffered, then -1.
    """

    def __init__(self, config: KVEventsConfig) -> None:
        """Raises ConfigError that names an endpoint that cannot be used."""
        self._config = config
        self._topic = config.topic.encode()
        self._queue: deque[tuple[int, float, abc.Sequence[BlockEvent]]] = deque()
        self._replay_buffer: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)
        self._next = 0
        self._dropped = 0
        self._closing = False
        self._context = zmq.Context()
        self._context.linger = LINGER_MS
        try:
            self._events = self._open(zmq.PUB, "endpoint", config.endpoint, config.hwm)
            self._replays: Any = None
            if config.replay_endpoint is not None:  # nothing of a replay may be lost, and what is kept is bounded
                self._replays = self._open(zmq.ROUTER, "replay_endpoint", config.replay_endpoint, 0)
        except ConfigError:
            self._context.destroy(linger=0)
            raise
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="jaxgen-kv-events", daemon=True)
        self._thread.start()
        self.publish([AllBlocksCleared()])

    def publish(self, events: abc.Sequence[BlockEvent]) -> None:
        """Queue a batch. One that finds the queue full is dropped, and its number with it, so that it is missed."""
        number, self._next = self._next, self._next + 1
        if len(self._queue) >= self._config.max_queue_size:
            self._dropped += 1
            return
        self._queue.append((number, time.time(), events))
        self._rouse()

    def stats(self) -> KVEventStats:
        return KVEventStats(batches=self._next, dropped_batches=self._dropped)

    def close(self, seconds: float) -> None:
        """Send what is queued, then end the thread, within the given seconds."""
        self._closing = True
        self._rouse()
        self._thread.join(seconds)

    def _rouse(self) -> None:
        with suppress(OSError):  # full: the thread has enough to wake it; or closed
            self._wake.send(b"\0")

    def _open(self, kind: int, name: str, endpoint: str, hwm: int) -> Any:
        socket = self._context.socket(kind)
        socket.sndhwm = hwm
        try:
            if name == "replay_endpoint" or any(part in endpoint for part in _BOUND):
                socket.bind(endpoint)
            else:
                socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise ConfigError(f"{FLAG}: {name} {endpoint!r} cannot be used: {error}") from error
        return socket

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._woken, zmq.POLLIN)
        if self._replays is not None:
            poller.register(self._replays, zmq.POLLIN)
        while not (self._closing and not self._queue):
            ready = dict(poller.poll())
            try:
                if self._woken.fileno() in ready:
                    self._woken.recv(4096)
                self._send_queued()
                if self._replays in ready:
                    self._replay()
            except Exception:
                logger.exception("an event of KV blocks could not be published")
        self._context.destroy(linger=LINGER_MS)
        self._woken.close()
        self._wake.close()

    def _send_queued(self) -> None:
        while self._queue:
            number, now, events = self._queue.popleft()
            head, payload = number.to_bytes(8, "big"), encode(events, now)
            if self._replays is not None:
                self._replay_buffer.append((head, payload))
            self._events.send_multipart((self._topic, head, payload))

    def _replay(self) -> None:
        frames = self._replays.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            logger.warning(
                "a replay of KV events was asked for with %d frames: send an empty one and 8 bytes", len(frames)
            )
            return
        caller, _, start = frames
        for head, payload in self._replay_buffer:
            if head >= start:  # big-endian: as their numbers
                self._replays.send_multipart((caller, b"", head, payload))
        self._replays.send_multipart((caller, b"", END, b""))
