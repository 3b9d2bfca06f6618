"""Read a model's text character by character, with coroutines that await the next character.

Characters that may belong to a call are held; they become content as soon as they cannot. Only the characters so far
decide this, so the output does not depend on how the text was cut into pieces.
"""

import json
from collections.abc import Callable, Container, Generator

from jaxgen.server.tool_calls.deltas import Arguments, CallStart, Delta

type Reading[Result] = Generator[None, str, Result]
"""A coroutine that is sent the characters of a text one by one, then "" at its end."""

ARGUMENTS = ("arguments", "parameters")
"""The formats' names for the arguments of a call."""


class NotACallError(Exception):
    """The held characters cannot become a call."""


class CallReader:
    """Building blocks of the formats' parsers. ``char``: the next character, not yet read; "" at the text's end."""

    def __init__(self, names: Container[str], new_id: Callable[[], str]) -> None:
        """``names``: of the known tools; a call of another name is content. ``new_id``: makes the id of a call."""
        self.char = ""
        self.num_calls = 0
        self.num_ended = 0
        """Calls whose arguments are complete."""
        self._names = names
        self._new_id = new_id
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

    def drop(self) -> None:
        """Discard the held characters: they belonged to a call."""
        self._held.clear()

    def give_up(self) -> None:
        """Turn the held characters into content."""
        if self._held:
            self._deltas.append("".join(self._held))
            self._held.clear()
            self._after_call = False

    def content(self, marker: str) -> Reading[bool]:
        """Read content up to and with ``marker``, held with the white space before it. Return False if the text ended.

        White space between a call and the end of the text is dropped. The marker's first character must not occur in it
        twice: else a failed match could hide the start of another.
        """
        while self.char:
            if self.char == marker[0]:
                try:
                    yield from self.literal(marker)
                except NotACallError:
                    self.give_up()
                    continue
                return True
            space = self.char.isspace()
            yield from self.read()
            if not space:
                self.give_up()
        if self._after_call:
            self.drop()
        self.give_up()
        return False

    def literal(self, text: str) -> Reading[None]:
        """Read exactly ``text``. Raises NotACallError at the first other character."""
        for expected in text:
            if self.char != expected:
                raise NotACallError
            yield from self.read()

    def spaces(self) -> Reading[None]:
        while self.char.isspace():
            yield from self.read()

    def name(self, text: str) -> str:
        """Return ``text`` if it is the name of a tool. Raises NotACallError."""
        if text not in self._names:
            raise NotACallError
        return text

    def call_object(self) -> Reading[None]:
        """Read a call: a JSON object with name and arguments in any order, and perhaps an id and a type, which are
        ignored. Missing arguments are {}. Raises NotACallError."""
        yield from self.literal("{")
        name: str | None = None
        arguments: str | None = None
        while True:
            key = yield from self._key()
            if key == "name" and name is None:
                name = self.name((yield from self._string()))
                if arguments is not None:
                    self._begin(name, arguments)
            elif key in ARGUMENTS and arguments is None:
                arguments = yield from self.arguments(name)
            elif key in ("id", "type"):
                yield from self._string()
            else:
                raise NotACallError
            yield from self.spaces()
            if self.char == "}":
                break
            yield from self.literal(",")
        if name is None:
            raise NotACallError
        if arguments is None:
            self._begin(name, "{}")
        yield from self.read()
        self.drop()

    def arguments(self, name: str | None) -> Reading[str]:
        """Read a JSON object and return its text. Only braces, brackets and strings are checked. Raises NotACallError.

        With a ``name`` the call begins here, and each character is a delta at once.
        """
        if self.char != "{":
            raise NotACallError
        if name is not None:
            self._begin(name, "")
        text: list[str] = []
        depth, quoted, escaped = 0, False, False
        while not text or depth:
            char = self.char
            if not char:
                raise NotACallError
            if quoted:
                quoted, escaped = char != '"' or escaped, char == "\\" and not escaped
            else:
                quoted = char == '"'
                depth += (char in "{[") - (char in "}]")
            text.append(char)
            if name is not None:
                self._deltas.append(Arguments(self.num_calls - 1, char))
            yield from self.read()
            if name is not None:
                self.drop()
        if name is not None:
            self.num_ended += 1
        return "".join(text)

    def _begin(self, name: str, arguments: str) -> None:
        self.drop()
        self._deltas.append(CallStart(self.num_calls, self._new_id(), name))
        if arguments:
            self._deltas.append(Arguments(self.num_calls, arguments))
            self.num_ended += 1
        self.num_calls += 1
        self._after_call = True

    def _key(self) -> Reading[str]:
        """Read the key of an object's member, with its colon and the white space around."""
        yield from self.spaces()
        key = yield from self._string()
        yield from self.spaces()
        yield from self.literal(":")
        yield from self.spaces()
        return key

    def _string(self) -> Reading[str]:
        start = len(self._held)
        yield from self.literal('"')
        escaped = False
        while self.char and (escaped or self.char != '"'):
            escaped = self.char == "\\" and not escaped
            yield from self.read()
        yield from self.literal('"')
        try:
            return str(json.loads("".join(self._held[start:])))
        except ValueError as error:
            raise NotACallError from error
