"""Keep the events of requests until they are handed out, and know which requests have not ended.

Runs in the engine's thread. Host only, no jax.
"""

from collections.abc import Iterable

from jaxgen.core.request import TokenEvent
from jaxgen.core.sequence import Sequence


class Outbox:
    """Events that wait to be handed out, and the requests that have not ended.

    A request is open from ``accept`` until an event with its ``finish_reason`` waits, or until it is withdrawn. Events
    of a request that is not open are dropped, so none gets two ends. And one that is open although nothing serves it
    any more has lost its end, whatever raised where: ``open`` names it.

    What waits says who has ended, and each method changes what waits in one statement. So an error in any of them loses
    no event and doubles none.
    """

    def __init__(self) -> None:
        self._events: list[TokenEvent] = []
        self._accepted: dict[str, Sequence] = {}
        """The requests whose end was not handed out."""

    @property
    def is_empty(self) -> bool:
        """Whether no event waits."""
        return not self._events

    @property
    def open(self) -> list[Sequence]:
        """The requests that have not ended, in the order in which they came."""
        ended = self._ended()
        return [sequence for name, sequence in self._accepted.items() if name not in ended]

    def check(self, request_id: str) -> None:
        """Raise ValueError if a request has this id whose end was not handed out."""
        if request_id in self._accepted:
            raise ValueError(f"request_id {request_id!r} is in use")

    def accept(self, sequence: Sequence) -> None:
        """Open a request, whose id was checked."""
        self._accepted[sequence.request_id] = sequence

    def put(self, events: Iterable[TokenEvent]) -> None:
        """Add events of open requests, in their order, one end of each at most; drop others."""
        ended, accepted = self._ended(), self._accepted
        self._events += [event for event in events if event.request_id in accepted and event.request_id not in ended]

    def withdraw(self, request_id: str) -> bool:
        """Close a request and drop its events; return False if there is none whose end was not handed out."""
        self._events = [event for event in self._events if event.request_id != request_id]
        return self._accepted.pop(request_id, None) is not None

    def take(self) -> list[TokenEvent]:
        """Return the events that wait, which now are the caller's."""
        for name in self._ended():
            self._accepted.pop(name, None)
        try:
            return self._events
        finally:
            self._events = []

    def _ended(self) -> set[str]:
        return {event.request_id for event in self._events if event.finish_reason is not None}
