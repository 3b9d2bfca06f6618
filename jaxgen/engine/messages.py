"""What event loops and the engine's thread send each other: requests, questions and aborts; events and errors.

Event loops' threads make messages, and the engine's makes an abort where a loop is closed. The engine's thread reads
them and calls ``deliver``. Host only, no jax.
"""

import asyncio
import concurrent.futures
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from jaxgen.core.quote import Quote
from jaxgen.core.request import Request, TokenEvent
from jaxgen.text.constraint import Constraint

type Item = TokenEvent | Exception


@dataclass(slots=True, eq=False)
class Stream:
    """Delivers the events of one request to ``put``, in the event loop that sent the request.

    ``put`` is called directly, without a task that waits for a queue, because it is called for every token.
    """

    loop: asyncio.AbstractEventLoop
    put: Callable[[Item], None]
    request: Request
    over: bool = False
    """Whether the engine has no more events for the request."""

    def deliver(self, item: Item) -> None:
        """Pass an event or error on, unless the request has ended. Runs in the event loop's own thread."""
        if self.over:
            return
        self.over = isinstance(item, Exception) or item.finish_reason is not None
        self.put(item)


@dataclass(frozen=True, slots=True)
class Submit:
    """Begin a request, whose events go to ``stream``. ``sent``: when, in seconds of ``time.monotonic``."""

    stream: Stream
    constraint: Constraint | None
    sent: float = field(default_factory=time.monotonic)

    @property
    def request(self) -> Request:
        return self.stream.request


@dataclass(frozen=True, slots=True)
class Abort:
    """End the request of ``stream``, which nobody reads any more. ``answered``: its reader has all that it wants."""

    stream: Stream
    answered: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """Predict the latencies of a request; ``answer`` gets them, or the error."""

    request: Request
    answer: concurrent.futures.Future[Quote]


type Message = Submit | Abort | Ask


def deliver(loop: asyncio.AbstractEventLoop, items: list[tuple[Stream, Item]]) -> bool:
    """Deliver items in the loop's own thread. Return False if the loop is closed."""

    def put() -> None:
        for stream, item in items:
            stream.deliver(item)

    try:
        loop.call_soon_threadsafe(put)
    except RuntimeError:
        return False
    return True
