"""Read a model's text character by character, with coroutines that await the next character.

Characters that may belong to a call are held; they become content as soon as they cannot. Only the characters so far
decide this, so the output does not depend on how the text was cut into pieces.
"""

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from jaxgen.server.tool_calls.deltas import Arguments, CallStart, Delta
from jaxgen.server.tool_calls.lenient_json import JsonWriter, as_object

type Reading[Result] = Generator[None, str, Result]
"""A coroutine that is sent the characters of a text one by one, then "" at its end."""

ARGUMENTS = ("arguments", "parameters")
"""The formats' names for the arguments of a call."""


_NO_OBJECT = ("null", "None", "[]")


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

    def close(self, text: str) -> Reading[None]:
        """Read the literal ``text``, with which a call's marks end: nothing is held when the next character comes."""
        yield from self.literal(text[:-1])
        if self.char != text[-1]:
            raise NotACallError
        self.drop()
        yield from self.skip()

    def spaces(self) -> Reading[None]:
        while self.char.isspace():
            yield from self.read()

    def name(self, text: str) -> str:
        """Return ``text`` if it is the name of a tool. Raises NotACallError."""
        if text not in self.tools:
            raise NotACallError
        return text

    def call_object(self) -> Reading[None]:
        """Read a call: a JSON object with name and arguments in any order, and perhaps an id and a type, which are
        ignored. Missing arguments are {}. After the arguments any members may come, and the object's end may be
        missing. Raises NotACallError."""
        yield from self.literal("{")
        name: str | None = None
        arguments: str | None = None
        while True:
            key = yield from self._key()
            if key == "name" and name is None:
                name = self.name((yield from self._string()))
                if arguments is not None:
                    self._whole_call(name, arguments)
            elif key in ARGUMENTS and arguments is None:
                arguments = yield from self.arguments(name)
            else:
                yield from self._other(key, is_call=None not in (name, arguments))
            yield from self.spaces()
            if self.char == "}" or (self.char != "," and None not in (name, arguments)):
                break
            yield from self.literal(",")
        if name is None:
            raise NotACallError
        if arguments is None:
            self._whole_call(name, "{}")
        if self.char == "}":
            yield from self.read()
            self.drop()

    def _other(self, key: str, *, is_call: bool) -> Reading[None]:
        """Read a member that says nothing of the call: any, if the rest of that ``is_call``."""
        if key in ("id", "type"):
            yield from self._string()
        elif is_call:
            yield from self._value()
        else:
            raise NotACallError

    def closers(self) -> Reading[None]:
        """Read white space, and braces that close nothing."""
        while self.char.isspace() or self.char == "}":
            yield from self.read()

    def arguments(self, name: str | None) -> Reading[str]:
        """Read a JSON object and return its text; also one in quotes, and null or [] for {}. Of an object only braces,
        brackets and strings are checked. Raises NotACallError.

        With a ``name`` the call begins here, and each character of an object is a delta at once.
        """
        if self.char != "{":
            text = yield from self._no_object()
            if name is not None:
                self._whole_call(name, text)
            return text
        if name is not None:
            self.begin(name)
        written: list[str] = []
        writer, depth = JsonWriter(), 0
        while not written or depth or writer.quote:
            if not self.char:
                raise NotACallError
            depth += _deeper(self.char, writer)
            written.append(writer.push(self.char))
            if name is not None:
                self.write(written[-1])
            yield from self.read()
            if name is not None:
                self.drop()
        if name is not None:
            self.end()
        return "".join(written)

    def _no_object(self) -> Reading[str]:
        """Read what some models write in place of the arguments' object, and return the object."""
        start = len(self._held)
        if self.char == '"':
            yield from self._string()
        else:
            yield from self.one_of(_NO_OBJECT)
        try:
            return as_object("".join(self._held[start:]))
        except ValueError as error:
            raise NotACallError from error

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

    def _whole_call(self, name: str, arguments: str) -> None:
        self.begin(name)
        self.write(arguments)
        self.end()

    def _key(self) -> Reading[str]:
        """Read the key of an object's member, with its colon and the white space around."""
        yield from self.spaces()
        key = yield from self._string()
        yield from self.spaces()
        yield from self.literal(":")
        yield from self.spaces()
        return key

    def _value(self) -> Reading[None]:
        """Read any JSON value. Raises NotACallError at the text's end."""
        writer, depth = JsonWriter(), 0
        while writer.quote or depth or self.char not in ",}]":
            if not self.char:
                raise NotACallError
            depth += _deeper(self.char, writer)
            writer.push(self.char)
            yield from self.read()

    def _string(self) -> Reading[str]:
        start = len(self._held)
        yield from self.literal('"')
        escaped = False
        while self.char and (escaped or self.char != '"'):
            escaped = self.char == "\\" and not escaped
            yield from self.read()
        yield from self.literal('"')
        try:
            return str(json.loads("".join(self._held[start:]), strict=False))
        except ValueError as error:
            raise NotACallError from error


def _deeper(char: str, writer: JsonWriter) -> int:
    """Return by how much the depth within brackets changes with a character."""
    return 0 if writer.quote else (char in "{[") - (char in "}]")
