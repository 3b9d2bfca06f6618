"""Send server-sent events, and cancel work when its caller disconnects."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pydantic_core
from starlette.types import Message, Receive, Send

DONE = b"data: [DONE]\n\n"


def encode(data: Any) -> bytes:
    """Encode as JSON in ASCII: some clients take U+0085 or U+2028 for line ends, or split characters.

    The caller must make sure that numbers are finite.
    """
    return pydantic_core.to_json(data, ensure_ascii=True)


def sse_event(data: Any, *, name: str = "") -> bytes:
    """Return one event, with a ``name`` if it is not empty."""
    return sse_head(data, name=name) + b"\n\n"


def sse_head(data: Any, *, name: str = "") -> bytes:
    """Return an event without its end, to which an id may be added."""
    head = f"event: {name}\n".encode("ascii") if name else b""
    return head + b"data: " + encode(data)


def start_of_events() -> Message:
    """Return the first ASGI message of a stream of events."""
    headers = [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),  # nginx passes each event on at once
    ]
    return {"type": "http.response.start", "status": 200, "headers": headers}


def more_events(events: Iterable[bytes], *, last: bool = False) -> Message:
    """Return the next ASGI message, with several events in one write."""
    return {"type": "http.response.body", "body": b"".join(events), "more_body": not last}


class EventWriter:
    """Sends the events of one response, in order, after its first message.

    After ``ping_seconds`` without an event it writes what ``ping`` returns, so that no proxy takes the response for
    dead; 0: never.
    """

    def __init__(self, send: Send, *, ping: Callable[[], bytes] = bytes, ping_seconds: float = 0.0) -> None:
        self._send = send
        self._under_way: asyncio.Task[None] | None = None
        self._waits = False
        """Whether ``write`` is in progress."""
        self._ping = ping
        self._ping_seconds = ping_seconds
        self._loop = asyncio.get_running_loop()
        self._written = self._loop.time()
        """When the last events were written."""
        self._timer: asyncio.TimerHandle | None = None
        if ping_seconds:
            self._set_timer()

    @property
    def is_free(self) -> bool:
        """Whether no write is in progress."""
        return self._under_way is None

    def write_at_once(self, events: Iterable[bytes]) -> None:
        """Write the events together, without waiting. Only while ``is_free``, which it stays unless the connection is
        full."""
        sending = self._begin(events)
        if sending.done():
            sending.result()
        else:
            self._under_way = sending

    def _begin(self, events: Iterable[bytes]) -> asyncio.Task[None]:
        """Begin to write. The task is done, unless the connection is full."""
        # Runs to its end here unless it must wait. Still a task, because code in ``send`` may ask for the current task.
        self._written = self._loop.time()
        return asyncio.Task(_sent(self._send, more_events(events)), loop=self._loop, eager_start=True)

    async def until_free(self) -> None:
        if self._under_way is not None:
            await self._under_way
            self._under_way = None

    async def write(self, events: Iterable[bytes], *, last: bool = False) -> None:
        """Write the events together, after the write in progress; wait while the caller's connection is full."""
        self._waits = True
        await self.until_free()
        await self._send(more_events(events, last=last))
        self._written = self._loop.time()
        self._waits = False

    def close(self) -> None:
        """Cancel the write in progress, and write nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._under_way is not None:
            self._under_way.cancel()

    def _set_timer(self) -> None:
        self._timer = self._loop.call_at(self._written + self._ping_seconds, self._end_silence)

    def _end_silence(self) -> None:
        """Write a ping if nothing else was written for so long. A full connection needs none."""
        now = self._loop.time()
        if self._waits or not self.is_free:
            self._written = now
        elif now >= self._written + self._ping_seconds:
            sending = self._begin((self._ping(),))
            if not sending.done() or sending.exception() is not None:
                self._under_way = sending  # the next write raises its error
        self._set_timer()


async def _sent(send: Send, message: Message) -> None:
    """Await ``send``, as a coroutine: ``send`` may return any awaitable, and a task takes only a coroutine."""
    await send(message)


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work``; cancel it when the caller disconnects. The request's body must have been read."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        (working if working.done() else watching).result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
