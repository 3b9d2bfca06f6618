"""Tell all readers of the feed what is new, five times a second, and nothing while nobody reads."""

import asyncio
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from jaxgen.client import EngineClient
from jaxgen.journal import Journal
from jaxgen.server.api.sse import EventWriter
from jaxgen.server.errors import ApiError
from jaxgen.server.middleware.lifecycle import Lifecycle
from jaxgen.server.shares import Shares
from jaxgen.server.step_feed.history import History
from jaxgen.server.step_feed.readings import CounterSnapshot, Meter
from jaxgen.server.step_feed.records import (
    NewEvent,
    NewRecords,
    by_caller,
    by_class,
    encode_now,
    make_hello,
    make_mine,
    make_now,
)
from jaxgen.server.step_feed.views import Views

INTERVAL = 0.2
TICKS_OF_NOW = 5
"""Ticks between two events ``now``."""
WINDOW = 10.0
"""Seconds over which the event ``now`` tells times and rates."""
MOST_READERS = 64


class Reader:
    """One stream of the feed. Nothing is kept for a reader whose connection is full: it loses what comes meanwhile."""

    def __init__(self, writer: EventWriter, caller: str, view: str) -> None:
        """``view``: whose events it sees, as in ``views``."""
        self.caller = caller
        self.view = view
        self.known = 0
        """Number of the arrival up to which it knows its own requests."""
        self._writer = writer
        self._dropped = 0
        self._over = self._failed = False
        self._wake = asyncio.Event()

    def tell(self, event: NewEvent | None, others: bytes) -> bool:
        """Write ``event`` and others. Return False if the connection is full, so that the reader does without."""
        if self._over:
            return False
        if not self._writer.is_free:
            self._dropped += 0 if event is None else event.count + event.dropped
            return False
        message = others
        if event is not None:
            message = event.encoded(self._dropped) + others
            self._dropped = 0
        if message:
            self._write(message)
        return True

    def end(self) -> None:
        """End the stream after what has been written."""
        self._over = True
        self._wake.set()

    async def run(self) -> None:
        """Return when the stream has ended; cancelled when the caller leaves."""
        try:
            while not self._over:
                await self._wake.wait()
                self._wake.clear()
                await self._writer.until_free()
            if not self._failed:
                await self._writer.write((), last=True)
        finally:
            self._writer.close()

    def _write(self, events: bytes) -> None:
        try:
            self._writer.write_at_once((events,))
        except Exception:  # the connection is gone, by the words of the server that we are in
            self._failed = True
            self.end()
        else:
            if not self._writer.is_free:
                self._wake.set()


class Hub:
    """The readers of one app's feed. While there are any a timer reads the journal, and encodes it once for all."""

    def __init__(
        self, engine: EngineClient, meter: Meter, history: History, lifecycle: Lifecycle, *, keyed: bool
    ) -> None:
        """``keyed``: callers need API keys."""
        self._engine = engine
        self._meter = meter
        self._history = history
        self._lifecycle = lifecycle
        self._keyed = keyed
        self._places = Shares(MOST_READERS)
        self._readers: set[Reader] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._ticks = 0
        self._steps = self._events = 0
        """How many records of the journal readers have been told."""
        self._views: Views | None = None
        self._sent_before: NewRecords | None = None
        """What new readers are told of the time before, if one has come since the last tick that had news."""
        self._recent: deque[CounterSnapshot] = deque()
        self._now: dict[str, bytes] = {}
        """The last event ``now``, by reader's name."""

    def place(self, caller: str) -> AbstractContextManager[None]:
        """Count a reader. Raises ApiError 429 if there are too many."""
        message = f"The server is at its limit: {self._places.limit} streams of its steps are read."
        refusal = ApiError(429, message, code="too_many_readers", headers={"Retry-After": "5"})
        return self._places.place(caller, refusal)

    def join(self, reader: Reader, journal: Journal) -> None:
        """Tell a new reader what the journal has, and from now on what is new."""
        if not self._readers:
            self._begin(journal)
        self._readers.add(reader)
        if self._sent_before is None:
            self._sent_before = self._records(journal, 0, 0)
        before = self._sent_before.event(reader.view)
        before = None if before is None else replace(before, dropped=0)
        reader.tell(None, make_hello(self._engine, journal, INTERVAL))
        reader.tell(before, self._now_of(reader.caller, journal) + self._mine(reader, journal, {}))

    def leave(self, reader: Reader) -> None:
        self._readers.discard(reader)
        if not self._readers and self._timer is not None:
            self._timer.cancel()
            self._timer = self._sent_before = self._views = None
            self._recent.clear()
            self._now.clear()

    def _records(self, journal: Journal, step: int, event: int) -> NewRecords:
        """Return the records from these numbers up to the last ones sent to readers."""
        if self._views is None:
            self._views = Views(journal)
        return NewRecords(journal, self._views, (step, self._steps), (event, self._events))

    def _begin(self, journal: Journal) -> None:
        self._steps, self._events = journal.steps.count, journal.events.count
        self._recent.append(self._history.last)
        self._ticks = 0
        self._measure()
        self._timer = asyncio.get_running_loop().call_later(INTERVAL, self._tick, journal)

    def _tick(self, journal: Journal) -> None:
        self._timer = asyncio.get_running_loop().call_later(INTERVAL, self._tick, journal)
        self._ticks += 1
        step, event = self._steps, self._events
        self._steps, self._events = journal.steps.count, journal.events.count
        records = self._records(journal, step, event)
        if (self._steps, self._events) != (step, event):
            self._sent_before = None
        is_now = self._ticks % TICKS_OF_NOW == 0
        if is_now:
            self._measure()
        mine: dict[tuple[str, int], bytes] = {}
        for reader in tuple(self._readers):
            now = self._now_of(reader.caller, journal) if is_now else b""
            self._tell(reader, journal, records.event(reader.view), now, mine)
        if self._lifecycle.draining or self._engine.status().state == "dead":
            for reader in self._readers:
                reader.end()

    def _tell(
        self, reader: Reader, journal: Journal, event: NewEvent | None, now: bytes, mine: dict[tuple[str, int], bytes]
    ) -> None:
        known = reader.known
        if not reader.tell(event, now + self._mine(reader, journal, mine)):
            reader.known = known

    def _mine(self, reader: Reader, journal: Journal, messages: dict[tuple[str, int], bytes]) -> bytes:
        """Return the event of a reader's own requests since the last one. ``messages``: such events of this tick."""
        count, first = journal.arrivals.count, reader.known
        if first == count:
            return b""
        key = reader.caller, first
        if key not in messages:
            # The journal still has requests older than its other records while they live.
            older = journal.live_requests() if first == 0 else []
            requests = {request.number: request for request in (*older, *journal.arrivals.between(first, count))}
            messages[key] = make_mine(requests.values(), reader.caller, keyed=self._keyed)
        reader.known = count
        return messages[key]

    def _measure(self) -> None:
        """Read the counters, for the events ``now`` of the next second."""
        now = self._meter.read()
        self._recent.append(now)
        while len(self._recent) > 2 and self._recent[1].time <= now.time - WINDOW:
            self._recent.popleft()
        self._now.clear()

    def _now_of(self, caller: str, journal: Journal) -> bytes:
        if caller not in self._now:
            live = journal.live_requests()
            shown: dict[str, Any] = make_now(self._engine, self._meter, self._recent[0], self._recent[-1])
            self._now[caller] = encode_now(shown, by_class(live), by_caller(live, caller))
        return self._now[caller]
