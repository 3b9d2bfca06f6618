"""An incremental parser of a model's text in any of the formats."""

from collections.abc import Container

from jaxgen.server.tool_calls.deltas import Delta, merged
from jaxgen.server.tool_calls.formats import ToolFormat
from jaxgen.server.tool_calls.reader import CallReader, Reading


class ToolParser:
    """``push`` the text of one message, then ``finish``: what comes out is the same however the text was cut.

    What only looks like a call is content. Nothing is lost but what calls are made of, white space before calls and at
    the end after them, and what follows the last call that may be.
    """

    def __init__(self, kind: ToolFormat, names: Container[str], most: int | None) -> None:
        """``names``: of the tools there are. ``most``: calls after which the message is over."""
        self._reader = CallReader(names, kind.new_id)
        self._most = most
        self._reading = _whole(kind, self._reader)
        next(self._reading)
        self.done = False
        """The message is over: nothing more is read."""

    @property
    def called(self) -> bool:
        """Whether there are calls so far, and all complete."""
        return 0 < self._reader.num_calls == self._reader.num_ended

    def push(self, text: str) -> tuple[Delta, ...]:
        """What became certain with this text."""
        for char in text:
            if self.done:
                break
            self._reading.send(char)
            self.done = self._reader.num_ended == self._most
        return merged(self._reader.take())

    def finish(self) -> tuple[Delta, ...]:
        """The rest, once no text follows."""
        if not self.done:
            self.done = True
            try:
                self._reading.send("")
            except StopIteration:
                return merged(self._reader.take())
            raise AssertionError("a format reads on after the end of the text")
        return ()


def _whole(kind: ToolFormat, reader: CallReader) -> Reading[None]:
    yield from reader.start()
    yield from kind.read(reader)
