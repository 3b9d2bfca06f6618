"""Number the events of a stream by tokens of its choices, and leave out the events that its caller has."""

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from jaxgen.server.resume.ticket import Ticket, answer_differs, malformed

_POSITION = re.compile(r"(?:([0-9]{1,9})-([0-9a-f]{8}))?(?:~([0-9]{1,9})-([0-9]{1,6}))?")
_MOST = 2**16
"""Most characters of an id that is read: some 2,000 choices."""
_ID = re.compile(r"([^.]*)\.([^.]*)(?:\.([0-9]{1,9}))?(\.u)?")


class Mark(NamedTuple):
    """A place in a choice: its first ``tokens`` tokens, and a checksum of their ids."""

    tokens: int
    checksum: int

    def sealed(self, key: bytes) -> "Mark":
        """Return the mark as ids have it, with a checksum that tells nothing of the tokens without the key."""
        digest = blake2b(b"%d-%d" % self, digest_size=4, key=key).digest()
        return Mark(self.tokens, int.from_bytes(digest))


@dataclass(frozen=True, slots=True)
class Position:
    """The part of a choice that was sent.

    It is all up to ``complete`` (None: nothing), and the first ``events`` of the events made of the tokens after it up
    to ``next``.
    """

    complete: Mark | None = None
    next: int = 0
    events: int = 0

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The numbers of tokens at which a piece of output ended, or would have."""
        complete = () if self.complete is None else (self.complete.tokens,)
        return (*complete, self.next) if self.events else complete

    @classmethod
    def decode(cls, text: str) -> "Position":
        """Read one position of an id. Raises ApiError 400."""
        match = _POSITION.fullmatch(text)
        if match is None:
            raise malformed()
        tokens, checksum, after, events = match.groups()
        complete = None if tokens is None else Mark(int(tokens), int(checksum, 16))
        position = cls(complete, int(after or 0), int(events or 0))
        if after is not None and not (
            position.events and position.next > (-1 if complete is None else complete.tokens)
        ):
            raise malformed()
        return position


class ReceivedPart(NamedTuple):
    """The part of a choice that a caller has. ``tokens``: its first ones, which need not be computed one by one
    again."""

    position: Position
    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class LastEvent:
    """The content of the id of a caller's last event. ``number``: of the event; None: it has none. ``usage``: whether
    that was the usage, after all choices."""

    ticket: Ticket
    positions: tuple[Position, ...]
    number: int | None
    usage: bool

    @classmethod
    def decode(cls, text: str, secret: bytes) -> "LastEvent":
        """Read an id. Raises ApiError: 400 for another text, 403 for another caller's."""
        match = None if len(text) > _MOST else _ID.fullmatch(text)
        if match is None:
            raise malformed()
        ticket, positions, number, usage = match.groups()
        return cls(
            Ticket.decode(ticket, secret),
            tuple(map(Position.decode, positions.split(","))),
            None if number is None else int(number),
            usage is not None,
        )


class EventIds:
    """Ends the events of one stream, with their ids where the caller asked for these. An event is what comes before its
    id, without a line's end.

    How tokens are joined to events depends on time, so an id has the tokens of each choice, not the number of events.
    """

    def __init__(self, ticket: bytes | None, positions: Sequence[Position], key: bytes = b"") -> None:
        """``ticket`` None: events have no ids. ``positions``: what the caller has of each choice; that is left out.

        ``key``: of the checksums in these and in ids.
        """
        self._key = key
        self._head = None if ticket is None else b"\nid: " + ticket + b"."
        self._sent = [b"" for _ in positions]
        self._due = [_dropped(position) for position in positions]

    @property
    def comment(self) -> bytes:
        """A comment, which says nothing and changes no id.

        Clients take an empty line for the end of an event; after an id some, as OpenAI's, then report an event without
        data. Where there are ids, the comment's empty line is left to the next event.
        """
        return b":\n\n" if self._head is None else b":\n"

    def numbered(self, index: int, mark: Mark, events: Sequence[bytes]) -> list[bytes]:
        """Return the events of choice ``index``'s output up to ``mark``, which were not told, with their ids.

        Raises ApiError 409 if the tokens are not the same as before.
        """
        if len(events) == 1 and not self._due[index]:  # nearly always
            if self._head is not None:
                self._sent[index] = b"%d-%08x" % mark.sealed(self._key)
            return [events[0] + self._end()]
        ends = self.ends(index, mark, len(events))
        return [event + end for event, end in zip(events[len(events) - len(ends) :], ends, strict=True)]

    def ends(self, index: int, mark: Mark, count: int, number: int | None = None) -> list[bytes]:
        """Return the ends of those of ``count`` events, the last ones, that were not told; see ``numbered``.

        ``number``: of the first of these, where events have numbers.
        """
        mark = mark.sealed(self._key)
        sent, before, complete = self._sent, self._sent[index], b"%d-%08x" % mark
        left_out = self._due[index].popleft().of(mark, count) if self._due[index] else 0
        ends: list[bytes] = []
        for i in range(left_out + 1, count + 1):
            sent[index] = complete if i == count else before + b"~%d-%d" % (mark.tokens, i)
            ends.append(self._end(None if number is None else number + len(ends)))
        sent[index] = complete
        return ends

    def end_of_usage(self, number: int | None = None) -> bytes:
        """Return the end of the event with the usage, after all choices. ``number``: see ``ends``."""
        return self._end(number, b".u")

    def _end(self, number: int | None = None, more: bytes = b"") -> bytes:
        if self._head is None:
            return b"\n\n"
        numbered = b"" if number is None else b".%d" % number
        return self._head + b",".join(self._sent) + numbered + more + b"\n\n"


class _Dropped(NamedTuple):
    """Events of one piece that were told: all, if its tokens have the checksum, or the first ``events``."""

    checksum: int | None
    events: int

    def of(self, mark: Mark, count: int) -> int:
        if self.checksum is None:
            return self.events
        if self.checksum != mark.checksum:
            raise answer_differs()
        return count


def _dropped(position: Position) -> deque[_Dropped]:
    result = deque([] if position.complete is None else [_Dropped(position.complete.checksum, 0)])
    if position.events:
        result.append(_Dropped(None, position.events))
    return result
