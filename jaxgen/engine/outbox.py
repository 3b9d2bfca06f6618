"""Keep the events of requests until they are handed out, and know which requests have not ended. Host only, no jax."""

from collections.abc import Iterable

from jaxgen.core.request import TokenEvent
from jaxgen.core.sequence import Sequence


class Outbox:
    """Events that wait to be handed out, and the requests that have not ended.

    A request is open from ``accept`` until the event with its ``finish_reason`` is put, or until it is withdrawn. An
    event of a request that is not open is dropped, so none gets two ends. And one that is open although nothing serves
    it any more has lost its end, whatever raised where: ``open`` names it.
    """

    def __init__(self) -> None:
        self._events: list[TokenEvent] = []
        self._open: dict[str, Sequence] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no event waits."""
        return not self._events

    @property
    def open(self) -> list[Sequence]:
        """The requests that have not ended, in the order in which they came."""
        return list(self._open.values())

    def check(self, request_id: str) -> None:
        """Raise ValueError if an open request has this id."""
        if request_id in self._open:
            raise ValueError(f"request_id {request_id!r} is in use")

    def accept(self, sequence: Sequence) -> None:
        """Open a request, whose id no open one has."""
        self._open[sequence.request_id] = sequence

    def put(self, events: Iterable[TokenEvent]) -> None:
        """Add events of open requests, in their order; drop others."""
        for event in events:
            if event.request_id in self._open:
                self._events.append(event)
                if event.finish_reason is not None:
                    del self._open[event.request_id]

    def withdraw(self, request_id: str) -> bool:
        """Close a request without an end, and drop its events; return False if it has neither."""
        kept = [event for event in self._events if event.request_id != request_id]
        found = len(kept) < len(self._events) or request_id in self._open
        self._events = kept
        self._open.pop(request_id, None)
        return found

    def take(self) -> list[TokenEvent]:
        """Return the events that wait, which now are the caller's."""
        events, self._events = self._events, []
        return events
