"""Read a model's text character by character, with coroutines that await the next character.

Characters that may belong to a call are held; they become content as soon as they cannot. Only the characters so far
decide this, so the output does not depend on how the text was cut into pieces.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from jaxgen.server.tool_calls.deltas import Arguments, CallStart, Delta

type Reading[Result] = Generator[None, str, Result]
"""A coroutine that is sent the characters of a text one by one, then "" at its end."""

_NAME_SPACE = "functions."
"""In front of the names of tools, as OpenAI's models have it."""


class NotACallError(Exception):
    """The held characters cannot become a call."""


class CallReader:
    """Building blocks of the formats' parsers. ``char``: the next character, not yet read; "" at the text's end."""

    def __init__(self, tools: Mapping[str, Mapping[str, Any]], call_id: Callable[[int], str]) -> None:
        """``tools``: the JSON schemas of the known tools' arguments by name; a call of another name is content.
        ``call_id``: makes the id of a call from its number."""
        self.char = ""
        self.cut = False
        """Whether the text ended although the model would have gone on."""
        self.num_calls = 0
        self.num_ended = 0
        """Calls whose arguments are complete."""
        self.tools = tools
        self._call_id = call_id
        self._held: list[str] = []
        self._deltas: list[Delta] = []
        self._after_call = False

    def take(self) -> list[Delta]:
        """Return and clear the deltas that have become certain."""
        taken, self._deltas = self._deltas, []
        return taken

    def start(self) -> Reading[None]:
        """Await the first character; once, before any other method."""
        self.char = yield

    def read(self) -> Reading[None]:
        """Read ``char``, and hold it."""
        self._held.append(self.char)
        self.char = yield

    def skip(self) -> Reading[None]:
        """Read ``char`` without holding it."""
        self.char = yield

    def drop(self) -> None:
        """Discard the held characters: they belonged to a call."""
        self._held.clear()

    def keep(self, held: str) -> None:
        """Hold no other characters than these last ones."""
        self._held[:] = held

    def drop_unfinished(self) -> None:
        """Discard the held characters if they may be the beginning of a call: the text was cut off within it."""
        self.cut = True
        if any(not char.isspace() for char in self._held):
            self.drop()

    def in_call(self, *, after: bool) -> bool:
        """Return whether what was read ends within a call, or what may become one; with ``after`` also where it ends
        with a call and white space."""
        within = self.num_calls > self.num_ended or any(not char.isspace() for char in self._held)
        return within or (after and self._after_call)

    @property
    def held(self) -> str:
        return "".join(self._held)

    def give_up(self) -> None:
        """Turn the held characters into content."""
        if self._held:
            self._deltas.append("".join(self._held))
            self._held.clear()
            self._after_call = False

    def content(self, *markers: str) -> Reading[str]:
        """Read content up to and with one of the markers, held with the white space before it. Return the marker; ""
        if the text ended.

        White space between a call and the end of the text is dropped. All markers begin with one character, which must
        not occur in them twice: else a failed match could hide the start of another.
        """
        while self.char:
            if self.char == markers[0][0]:
                try:
                    return (yield from self.one_of(markers))
                except NotACallError:
                    self.give_up()
                    continue
            if self.char.isspace():
                yield from self.read()
            else:
                self._held.append(self.char)
                self.give_up()
                yield from self.skip()
        if self._after_call:
            self.drop()
        self.give_up()
        return ""

    def one_of(self, texts: Sequence[str]) -> Reading[str]:
        """Read one of these texts, none of which begins with another, and return it. Raises NotACallError at the first
        character that belongs to none."""
        length = 0
        while True:
            texts = [text for text in texts if text[length] == self.char]
            if not texts:
                raise NotACallError
            yield from self.read()
            length += 1
            if len(texts[0]) == length:
                return texts[0]

    def literal(self, text: str) -> Reading[None]:
        """Read exactly ``text``. Raises NotACallError at the first other character."""
        for expected in text:
            if self.char != expected:
                raise NotACallError
            yield from self.read()

    def close(self, end: str, *others: str) -> Reading[str]:
        """Read ``end``, with which a call's marks end, or one of the ``others``, and return it. Nothing is held when
        the next character after ``end`` comes."""
        length = 0
        texts = [end, *others]
        while True:
            texts = [text for text in texts if text[length] == self.char]
            if not texts:
                raise NotACallError
            length += 1
            if texts == [end] and len(end) == length:
                self.drop()
                yield from self.skip()
                return end
            yield from self.read()
            if len(texts[0]) == length:
                return texts[0]

    def spaces(self) -> Reading[None]:
        while self.char.isspace():
            yield from self.read()

    def name(self, text: str) -> str:
        """Return the tool's name that a text is, perhaps with the name space in front. Raises NotACallError."""
        tool = text if text in self.tools else text.removeprefix(_NAME_SPACE)
        if tool not in self.tools:
            raise NotACallError
        return tool

    def begin(self, name: str) -> None:
        """Begin a call. What is held belongs to it."""
        self.drop()
        self._deltas.append(CallStart(self.num_calls, self._call_id(self.num_calls), name))
        self.num_calls += 1
        self._after_call = True

    def write(self, arguments: str) -> None:
        """Add to the JSON text of the call's arguments."""
        if arguments:
            self._deltas.append(Arguments(self.num_calls - 1, arguments))

    def end(self) -> None:
        """End the call: its arguments are complete."""
        self.num_ended += 1

    def whole_call(self, name: str, arguments: str) -> None:
        """Add a call with all its arguments."""
        self.begin(name)
        self.write(arguments)
        self.end()
