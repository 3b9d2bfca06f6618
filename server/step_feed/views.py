"""Which events of the journal a reader sees: those of its own requests, or all."""

from jaxgen.journal import NUM_EVENTS, EventRecord, Journal

EVERYTHING = ""
"""The view of a reader who sees all events; other views are names of callers."""


class Views:
    """Knows whose request an event of the journal is of, for as long as the journal may have events of it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._callers: dict[int, str] = {}
        self._known = 0

    def seen(self, events: list[EventRecord], view: str) -> list[EventRecord]:
        """Return the events that a view has."""
        if view == EVERYTHING:
            return events
        self._update()
        return [event for event in events if self._callers.get(event[1]) == view]

    def _update(self) -> None:
        """Learn of the requests that have come. An event follows the arrival of its request."""
        journal, count = self._journal, self._journal.arrivals.count
        if count == self._known:
            return
        # Older ones than the ring of arrivals has are known from before, or live.
        older = journal.live_requests() if count - self._known > NUM_EVENTS or not self._known else []
        for request in (*older, *journal.arrivals.between(self._known, count)):
            self._callers[request.number] = request.caller
        self._known = count
        if len(self._callers) > 4 * NUM_EVENTS:
            live = journal.live
            recent = sorted(self._callers)[-NUM_EVENTS:]
            self._callers = {number: self._callers[number] for number in {*recent, *live} & self._callers.keys()}
