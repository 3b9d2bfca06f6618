"""Read calls as Gemma 4 writes them: keys without quotes, and texts between marks of their own."""

import json

from jaxgen.server.tool_calls.call_objects import arguments, closers
from jaxgen.server.tool_calls.lenient_json import JsonWriter
from jaxgen.server.tool_calls.reader import CallReader, NotACallError, Reading

BEGIN, END, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
CALL = "call:"


def read_gemma4(reader: CallReader) -> Reading[None]:
    """Read ``<|tool_call>call:f{key:<|"|>text<|"|>,other:1}<tool_call|>``, any number of times between content. The end
    mark may be missing before another call."""
    next_mark = ""
    while next_mark or (yield from reader.content(BEGIN)):
        next_mark = ""
        try:
            yield from reader.spaces()
            yield from reader.literal(CALL)
            name = reader.name((yield from _name(reader)))
            yield from arguments(reader, name, QuotedWriter())
            yield from closers(reader)
            reader.drop()
            mark = yield from reader.close(END, BEGIN)
            next_mark = mark if mark == BEGIN else ""
        except NotACallError:
            reader.give_up()


def _name(reader: CallReader) -> Reading[str]:
    """Read a name up to the brace after it, which stays unread. Raises NotACallError where none is on the line."""
    start = len(reader.held)
    while reader.char != "{":
        if reader.char in ("", "\n"):
            raise NotACallError
        yield from reader.read()
    return reader.held[start:].strip()


class QuotedWriter:
    """Returns JSON as JsonWriter does, and takes texts between the marks too. Nothing is escaped within these."""

    def __init__(self) -> None:
        self._writer = JsonWriter()
        self._within = False
        """Whether the last character is in a text between the marks."""
        self._held = ""
        """Characters that may begin a mark."""

    @property
    def depth(self) -> int:
        return self._writer.depth

    @property
    def quote(self) -> str:
        return self._writer.quote

    def push(self, char: str) -> str:
        if self._writer.quote and not self._within:  # a text in JSON's quotes, in which the mark is text
            return self._writer.push(char)
        held = self._held + char
        if held == QUOTE:
            self._held = ""
            written = self._writer.push('"')
            self._within = bool(self._writer.quote)
            return written
        if QUOTE.startswith(held):
            self._held = held
            return ""
        ready, self._held = (held[:-1], char) if char == QUOTE[0] else (held, "")
        return "".join(map(self._take, ready))

    def _take(self, char: str) -> str:
        """Take a character that is in no mark."""
        characters = json.dumps(char, ensure_ascii=False)[1:-1] if self._within else char
        return "".join(map(self._writer.push, characters))
