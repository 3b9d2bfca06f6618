"""Read calls that are JSON objects, as models write them."""

import json
from dataclasses import dataclass
from typing import Protocol

from jaxgen.server.tool_calls.lenient_json import JsonWriter, as_json, as_object
from jaxgen.server.tool_calls.reader import CallReader, NotACallError, Reading

ARGUMENTS = ("arguments", "parameters", "args", "input")
"""The formats' names for the arguments of a call, and two that models take from elsewhere."""


FUNCTION = "function"
"""Key of an object with the call's name and arguments, as OpenAI's API has it."""
NAMES = ("name", FUNCTION, "tool", "tool_name")

OBJECTS = ("{", "[")
"""How objects of calls, or a list of them, begin."""
_NO_OBJECT = ("null", "None", "[]")
_SAYS_NOTHING = frozenset({"id", "type", "index", "call_id", "tool_call_id"})
"""Keys of members that say nothing of the call."""


@dataclass(slots=True)
class _Call:
    """What is known of the call that is read."""

    name: str | None = None
    arguments: str | None = None

    @property
    def is_new(self) -> bool:
        return self.name is None and self.arguments is None

    @property
    def is_whole(self) -> bool:
        return self.name is not None and self.arguments is not None


def call_objects(reader: CallReader) -> Reading[None]:
    """Read the objects of calls, perhaps in a list, with a comma, a semicolon or white space between two."""
    yield from reader.spaces()
    is_list = reader.char == "["
    if is_list:
        yield from reader.literal("[")
        yield from reader.spaces()
    while True:
        yield from call_object(reader)
        yield from closers(reader)
        while reader.char in (",", ";") or reader.char.isspace():
            yield from reader.read()
        if reader.char != "{":
            break
    if is_list:
        yield from reader.close("]")
        yield from closers(reader)


def tagged_objects(reader: CallReader, begin: str, end: str) -> Reading[str]:
    """Read the objects of calls behind the mark ``begin``, up to ``end``. Return ``begin`` if it comes in place of the
    end; else ""."""
    yield from call_objects(reader)
    reader.drop()
    mark = yield from reader.close(end, begin)
    return mark if mark == begin else ""


def call_object(reader: CallReader) -> Reading[None]:
    """Read a call: a JSON object with name and arguments in any order, perhaps both in a member ``function``, and
    perhaps with an id and the like, which are ignored. Missing arguments are {}. After the arguments any members
    may come, and the object's end may be missing. Raises NotACallError."""
    call = _Call()
    yield from _members(reader, call)
    if call.name is None:
        raise NotACallError
    if call.arguments is None:
        reader.whole_call(call.name, "{}")
    if reader.char == "}":
        yield from reader.read()
        reader.drop()


def _members(reader: CallReader, call: _Call) -> Reading[None]:
    """Read an object of a call up to its end."""
    yield from reader.literal("{")
    while True:
        yield from reader.spaces()
        if reader.char == "}":  # after a comma
            return
        key = yield from _key(reader)
        if key == FUNCTION and reader.char == "{" and call.is_new:
            yield from _members(reader, call)
            if reader.char == "}":
                yield from reader.read()
        elif key in NAMES and call.name is None:
            call.name = reader.name((yield from _string(reader)))
            if call.arguments is not None:
                reader.whole_call(call.name, call.arguments)
        elif key in ARGUMENTS and call.arguments is None:
            call.arguments = yield from arguments(reader, call.name)
        elif key in _SAYS_NOTHING or call.is_whole:
            yield from _value(reader)
        else:
            raise NotACallError
        yield from reader.spaces()
        if reader.char == "}" or (reader.char != "," and call.is_whole):
            return
        yield from reader.literal(",")


def closers(reader: CallReader) -> Reading[None]:
    """Read white space, and braces that close nothing."""
    while reader.char.isspace() or reader.char == "}":
        yield from reader.read()


class Writer(Protocol):
    """Makes JSON of the characters of an object, as JsonWriter does."""

    @property
    def depth(self) -> int: ...

    @property
    def quote(self) -> str: ...

    def push(self, char: str) -> str: ...


def arguments(reader: CallReader, name: str | None, writer: Writer | None = None) -> Reading[str]:
    """Read a JSON object and return its text; also one in quotes, and null or [] for {}. An object becomes valid
    JSON. Raises NotACallError.

    With a ``name`` the call begins here, and each character of an object is a delta at once. ``writer``: of the
    format's objects; None: they are JSON.
    """
    if reader.char != "{":
        text = yield from _no_object(reader)
        if name is not None:
            reader.whole_call(name, text)
        return text
    if name is not None:
        reader.begin(name)
    written: list[str] = []
    writer = JsonWriter() if writer is None else writer
    while not written or writer.depth or writer.quote:
        if not reader.char:
            raise NotACallError
        written.append(writer.push(reader.char))
        if name is not None:
            reader.write(written[-1])
        yield from reader.read()
        if name is not None:
            reader.drop()
    if name is not None:
        reader.end()
    return "".join(written)


def _no_object(reader: CallReader) -> Reading[str]:
    """Read what some models write in place of the arguments' object, and return the object."""
    start = len(reader.held)
    if reader.char in ('"', "'"):
        yield from _string(reader)
    else:
        yield from reader.one_of(_NO_OBJECT)
    try:
        return as_object(reader.held[start:])
    except ValueError as error:
        raise NotACallError from error


def _key(reader: CallReader) -> Reading[str]:
    """Read the key of an object's member, with its colon and the white space around."""
    yield from reader.spaces()
    key = yield from _string(reader)
    yield from reader.spaces()
    yield from reader.literal(":")
    yield from reader.spaces()
    return key


def _value(reader: CallReader) -> Reading[None]:
    """Read any JSON value. Raises NotACallError at the text's end."""
    writer = JsonWriter()
    while writer.quote or writer.depth or reader.char not in ",}]":
        if not reader.char:
            raise NotACallError
        writer.push(reader.char)
        yield from reader.read()


def _string(reader: CallReader) -> Reading[str]:
    start, quote = len(reader.held), "'" if reader.char == "'" else '"'
    yield from reader.literal(quote)
    escaped = False
    while reader.char and (escaped or reader.char != quote):
        escaped = reader.char == "\\" and not escaped
        yield from reader.read()
    yield from reader.literal(quote)
    try:
        return str(json.loads(as_json(reader.held[start:])))
    except ValueError as error:
        raise NotACallError from error
