"""Parse a model's text incrementally, in any of the formats of tool calls."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

from jaxgen.server.tool_calls.deltas import Delta, merged
from jaxgen.server.tool_calls.formats import ToolFormat
from jaxgen.server.tool_calls.reader import CallReader, Reading


class MessageParser(Protocol):
    """``push`` the text of one message, then ``finish``: the joined output is the same however the text was cut."""

    starts: list[tuple[int, int]]
    """Where content continues after something else, in characters: of the content, and of the text. Empty: content is
    the beginning of the text."""
    done: bool
    """Whether the message has ended: no more text is read."""

    @property
    def called(self) -> bool:
        """Whether the message has calls so far, and all are complete."""
        ...

    @property
    def reasons(self) -> bool:
        """Whether the text so far ends within reasoning."""
        ...

    def in_call(self, *, after: bool) -> bool:
        """Return whether the text so far ends within a call, or what may become one; with ``after`` also where it ends
        with a call and white space."""
        ...

    def push(self, text: str) -> tuple[Delta, ...]:
        """Read a text, and return the deltas that are certain with it."""
        ...

    def finish(self, *, cut: bool = False) -> tuple[Delta, ...]:
        """Return the remaining deltas, once no text follows.

        ``cut``: the model would have gone on. What may be the beginning of a mark, or of a call, is then left out.
        """
        ...


class PlainParser:
    """A parser of messages that are content and nothing else."""

    def __init__(self) -> None:
        self.starts: list[tuple[int, int]] = []
        self.done = False
        self.called = False
        self.reasons = False

    def in_call(self, *, after: bool) -> bool:  # noqa: ARG002  # it has no calls
        return False

    def push(self, text: str) -> tuple[Delta, ...]:
        return (text,) if text else ()

    def finish(self, *, cut: bool = False) -> tuple[Delta, ...]:  # noqa: ARG002  # nothing is held
        self.done = True
        return ()


class ToolParser:
    """A parser of messages with calls in one of the formats.

    An invalid call is content. The content lacks only the text of calls, and white space before calls and at the end
    after them. It also lacks text after the last allowed call, and the rest of a call that was cut off.
    """

    def __init__(
        self,
        kind: ToolFormat,
        tools: Mapping[str, Mapping[str, Any]],
        most: int | None,
        *,
        only_calls: bool = False,
        name: str = "",
    ) -> None:
        """``tools``: the known ones, the JSON schemas of their arguments by name. ``most``: number of calls that ends
        the message; None: no limit.

        ``only_calls``: a grammar holds the message to calls, so that what is held at its end belongs to one.
        ``name``: of the choice, from which the ids of calls are made.
        """
        self._reader = CallReader(tools, partial(kind.call_id, name))
        self._most = most
        self._only_calls = only_calls
        self._reading = _whole(kind, self._reader)
        next(self._reading)
        self.starts: list[tuple[int, int]] = []
        self.done = False
        self.reasons = False

    @property
    def called(self) -> bool:
        return 0 < self._reader.num_calls == self._reader.num_ended

    def in_call(self, *, after: bool) -> bool:
        return self._only_calls or self._reader.in_call(after=after)

    def push(self, text: str) -> tuple[Delta, ...]:
        for char in text:
            if self.done:
                break
            self._reading.send(char)
            self.done = self._reader.num_ended == self._most
        return merged(self._reader.take())

    def finish(self, *, cut: bool = False) -> tuple[Delta, ...]:
        if self.done:
            return ()
        self.done = True
        if cut:
            self._reader.drop_unfinished()
        try:
            self._reading.send("")
        except StopIteration:
            left = self._reader.take()
            return merged([delta for delta in left if not (self._only_calls and isinstance(delta, str))])
        raise AssertionError("a format reads on after the end of the text")


def _whole(kind: ToolFormat, reader: CallReader) -> Reading[None]:
    yield from reader.start()
    yield from kind.read(reader)
