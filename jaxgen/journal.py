"""The journal of an engine: its last steps and what happened to its requests. One thread writes, any may read."""

from dataclasses import dataclass, field
from typing import NamedTuple

NUM_STEPS = 2048
NUM_EVENTS = 4096


class StepRecord(NamedTuple):
    """A step whose output was read. The field names are those of the step feed (docs/steps.md)."""

    number: int
    time: float
    seconds: float
    predicted: float
    width: int
    decodes: int
    prompt: int
    running: int
    waiting: int
    free: int
    cached: int
    host: int


type EventRecord = tuple[float, int, str, *tuple[int | str, ...]]
"""Time, number of the request, kind, and the values of this kind (docs/steps.md)."""


class RingBuffer[Record]:
    """The last ``size`` records, numbered from 0. One thread appends; others read at the same time, without a lock."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._slots: list[tuple[int, Record] | None] = [None] * size
        self.count = 0
        """Records appended so far."""

    def append(self, record: Record) -> None:
        count = self.count
        self._slots[count % self._size] = count, record
        self.count = count + 1

    def between(self, first: int, end: int) -> list[Record]:
        """Return the records from number ``first`` to ``end - 1`` that are still there; ``end``: at most ``count``."""
        slots = [self._slots[number % self._size] for number in range(max(first, end - self._size), end)]
        # The writer may have put a later record into a slot since ``count`` was read.
        return [slot[1] for slot in slots if slot is not None and slot[0] < end]


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request that has not ended. ``caller``: who asks, as ``Request.tenant``. ``service``: name of its class."""

    number: int
    request_id: str
    caller: str
    service: str
    running: bool = False


@dataclass(frozen=True, slots=True)
class Journal:
    """What an engine notes down as it works; it keeps a bounded number of records, whether somebody reads or not."""

    token_budget: int
    max_num_seqs: int
    block_size: int
    skips_padding: bool = False
    """Whether the kernels leave out a step's padding, so that it takes no time."""
    steps: RingBuffer[StepRecord] = field(default_factory=lambda: RingBuffer(NUM_STEPS))
    events: RingBuffer[EventRecord] = field(default_factory=lambda: RingBuffer(NUM_EVENTS))
    arrivals: RingBuffer[LiveRequest] = field(default_factory=lambda: RingBuffer(NUM_EVENTS))
    """The requests in the order in which they came."""
    live: dict[int, LiveRequest] = field(default_factory=dict)
    """The requests that have not ended, by number."""

    def live_requests(self) -> list[LiveRequest]:
        """Return the requests that have not ended; for other threads than the writer's."""
        return list(self.live.values())  # one operation of the interpreter, so that the writer cannot come between
