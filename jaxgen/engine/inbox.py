"""The inbox of an engine's thread: messages from event loops, and for how long the thread waits for them.

Any thread puts messages in and may close it; only the engine's thread takes them. Host only, no jax.
"""

import threading
import time
from collections import deque
from typing import Protocol

from jaxgen.core.errors import EngineDeadError
from jaxgen.core.request import Request
from jaxgen.engine.anticipation import Anticipation
from jaxgen.engine.messages import Abort, Message, Submit

MOST_MESSAGES = 16
"""Most messages that are taken between two steps. To accept a request takes 0.1 or 0.2 ms, and a burst of them must not
stop the streams that run."""
STOPPED = "the engine has stopped"


class Work(Protocol):
    """What the inbox asks of the engine: whether it must go on, or may wait for messages."""

    @property
    def has_work(self) -> bool: ...

    @property
    def held_for(self) -> float:
        """Seconds for which all of it is held back; else 0."""
        ...

    @property
    def runs_ahead(self) -> bool:
        """Whether a step begins before the events of the one before it are known."""
        ...


class Inbox:
    """Takes messages from any thread until it is closed, and gives them to the engine's thread between its steps."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._messages: deque[Message] = deque()
        self._closed: str | None = None
        """Why no more messages are taken."""
        self._anticipation = Anticipation()

    def put(self, message: Message) -> None:
        """Add a message. Raises EngineDeadError if the inbox is closed; then an abort has nothing to do."""
        with self._changed:
            if self._closed is not None:
                if not isinstance(message, Abort):
                    raise EngineDeadError(self._closed)
                return
            if isinstance(message, Submit) and not message.request.background:  # ``ended`` leaves these out too
                self._anticipation.came(message.request.tenant, message.sent)
            self._messages.append(message)
            self._changed.notify()

    def take(self, engine: Work, taken: deque[Message]) -> bool:
        """Move the oldest messages to ``taken``; wait for one if the engine has no work.

        Return False if the inbox is closed.
        """
        with self._changed:
            self._await_next(engine)
            while not (self._messages or self._closed is not None or (engine.has_work and engine.held_for == 0.0)):
                self._changed.wait(engine.held_for if engine.has_work else None)
            if self._closed is not None:
                return False
            taken.extend(self._messages.popleft() for _ in range(min(MOST_MESSAGES, len(self._messages))))
            return True

    def close(self, reason: str = STOPPED) -> None:
        """Accept no more messages. What was not taken yet stays. An error's ``reason`` replaces STOPPED."""
        with self._changed:
            if self._closed is None or self._closed == STOPPED:
                self._closed = reason
            self._changed.notify()

    def empty(self) -> list[Message]:
        """Return the messages that nobody has taken."""
        with self._changed:
            left = [*self._messages]
            self._messages.clear()
            return left

    def stepped(self, seconds: float) -> None:
        """Note that a step took ``seconds``."""
        with self._changed:
            self._anticipation.stepped(seconds)

    def ended(self, request: Request) -> None:
        """Note that the answer to a request is on its way: the same caller may send another soon."""
        if not request.background:
            with self._changed:
                self._anticipation.ended(request.tenant, time.monotonic())

    def _await_next(self, engine: Work) -> None:
        """Wait for requests that are likely to come soon, so that the next step computes them."""
        if engine.runs_ahead:
            return
        began = now = time.monotonic()
        while engine.has_work and self._closed is None and (seconds := self._anticipation.seconds(now)) > 0.0:
            self._changed.wait(seconds)
            now = time.monotonic()
        self._anticipation.waited(now - began)
