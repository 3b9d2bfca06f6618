"""Server-sent events, and work that ends when its caller leaves."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

import pydantic_core
from starlette.types import Message, Receive, Send

DONE = b"data: [DONE]\n\n"


def encode(data: Any) -> bytes:
    """As JSON, in ASCII: some clients take U+0085 or U+2028 for line ends, or cut characters in two. Numbers must be
    finite, which is for those to see to who make them."""
    return pydantic_core.to_json(data, ensure_ascii=True)


def sse_event(data: Any, *, name: str = "") -> bytes:
    """One event, perhaps with a ``name``."""
    head = f"event: {name}\n".encode("ascii") if name else b""
    return head + b"data: " + encode(data) + b"\n\n"


def start_of_events() -> Message:
    """The first message of a response that is made of events."""
    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
    return {"type": "http.response.start", "status": 200, "headers": headers}


def more_events(events: Iterable[bytes], *, last: bool = False) -> Message:
    """Its next, which goes out in one write."""
    return {"type": "http.response.body", "body": b"".join(events), "more_body": not last}


class EventWriter:
    """Sends the events of one response, in order, after its start."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._under_way: asyncio.Task[None] | None = None

    @property
    def is_free(self) -> bool:
        """Whether all has gone out that was written."""
        return self._under_way is None

    def write_at_once(self, events: Iterable[bytes]) -> None:
        """Without waiting, in one write; only while ``is_free``, which it stays unless the connection is full."""
        # Runs to its end here unless it must wait. A task all the same: what is in ``send`` may ask which one runs.
        loop = asyncio.get_running_loop()
        sending = asyncio.Task(_sent(self._send, more_events(events)), loop=loop, eager_start=True)
        if sending.done():
            sending.result()
        else:
            self._under_way = sending

    async def until_free(self) -> None:
        if self._under_way is not None:
            await self._under_way
            self._under_way = None

    async def write(self, events: Iterable[bytes], *, last: bool = False) -> None:
        """In one write, after what is under way; waits while the caller's connection is full."""
        await self.until_free()
        await self._send(more_events(events, last=last))

    def close(self) -> None:
        """Gives up what is under way."""
        if self._under_way is not None:
            self._under_way.cancel()


async def _sent(send: Send, message: Message) -> None:
    """``send`` returns any awaitable, a task takes a coroutine."""
    await send(message)


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Runs ``work``; cancels it when the caller leaves. The request's body must have been read."""
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
