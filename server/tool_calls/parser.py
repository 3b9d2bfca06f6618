"""Parse a model's text incrementally, in any of the formats."""

from collections.abc import Container

from jaxgen.server.tool_calls.deltas import Delta, merged
from jaxgen.server.tool_calls.formats import ToolFormat
from jaxgen.server.tool_calls.reader import CallReader, Reading


class ToolParser:
    """``push`` the text of one message, then ``finish``: the joined output is the same however the text was cut.

    An invalid call is content. The content lacks only the text of calls, white space before calls and at the end after
    them, text after the last allowed call, and in a message of nothing but calls what is left of one that was cut off.
    """

    def __init__(self, kind: ToolFormat, names: Container[str], most: int | None, *, only_calls: bool = False) -> None:
        """``names``: of the known tools. ``most``: number of calls that ends the message; None: no limit.

        ``only_calls``: a grammar holds the message to calls, so that what is held at its end belongs to one.
        """
        self._reader = CallReader(names, kind.new_id)
        self._most = most
        self._only_calls = only_calls
        self._reading = _whole(kind, self._reader)
        next(self._reading)
        self.done = False
        """Whether the message has ended: no more text is read."""

    @property
    def called(self) -> bool:
        """Whether the message has calls so far, and all are complete."""
        return 0 < self._reader.num_calls == self._reader.num_ended

    def push(self, text: str) -> tuple[Delta, ...]:
        """Read a text, and return the deltas that are certain with it."""
        for char in text:
            if self.done:
                break
            self._reading.send(char)
            self.done = self._reader.num_ended == self._most
        return merged(self._reader.take())

    def finish(self) -> tuple[Delta, ...]:
        """Return the remaining deltas, once no text follows."""
        if not self.done:
            self.done = True
            try:
                self._reading.send("")
            except StopIteration:
                left = self._reader.take()
                return merged([one for one in left if not (self._only_calls and isinstance(one, str))])
            raise AssertionError("a format reads on after the end of the text")
        return ()


def _whole(kind: ToolFormat, reader: CallReader) -> Reading[None]:
    yield from reader.start()
    yield from kind.read(reader)
