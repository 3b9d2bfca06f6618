"""Formats in which each argument of a call has marks of its own, and only values other than texts are JSON."""

import json
import re
from collections.abc import Callable
from typing import NamedTuple

from jaxgen.server.tool_calls.call_objects import OBJECTS, tagged_objects
from jaxgen.server.tool_calls.reader import CallReader, NotACallError, Reading
from jaxgen.server.tool_calls.typed_values import Schemas, typed

TOOL_CALL, END_TOOL_CALL = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
ARG_KEY, END_ARG_KEY = "<arg_key>", "</arg_key>"
ARG_VALUE, END_ARG_VALUE = "<arg_value>", "</arg_value>"

_SPACE = r"[ \t\r\n]{0,64}"
_SPOILED = r"[A-Za-z0-9_/]{0,16}"
"""What models write in place of the ``>`` of an end mark, or before it."""


class ValueEnds(NamedTuple):
    """The texts that end a value."""

    whole: re.Pattern[str]
    """Matches an end; its last group is the call's next mark, one before that a name that must be the value's key."""
    begun: re.Pattern[str]
    """Matches the beginning of one."""

    def mark(self, text: str, key: str) -> str:
        """Return the next mark of the call, if the text ends the value of ``key``; empty: it does not."""
        match = self.whole.fullmatch(text)
        groups = [group for group in match.groups() if group is not None] if match else []
        return groups[-1] if groups and (len(groups) == 1 or groups[0] == key) else ""


def _chars(text: str) -> list[str]:
    return [re.escape(char) for char in text]


def _ends(ends: list[tuple[list[str], str]]) -> ValueEnds:
    """Return the patterns of ends. Each is regular expressions, of a character or a run of some, which must match one
    after another, then a mark."""
    whole = "|".join(f"{''.join(before)}({re.escape(mark)})" for before, mark in ends)
    begun = []
    for before, mark in ends:
        pattern = ""
        for character in reversed([*before, *_chars(mark)]):
            pattern = f"(?:{character}{pattern})?"
        begun.append(pattern)
    return ValueEnds(re.compile(whole), re.compile("|".join(begun)))


def _qwen3_ends() -> ValueEnds:
    """Return the ends: the value's mark, or its key's name as one, where a mark of the call follows. Without a mark of
    its own a value ends with the next parameter in a line of its own, or with the ends of function and call together.
    """
    spoiled = [*_chars(END_PARAMETER[:-1]), _SPOILED, ">?"]
    named = ["<", "/", r"([^<>\n]{1,64})", ">"]
    following = (PARAMETER, END_FUNCTION, END_TOOL_CALL)
    ends = [(["\n?", *spoiled, _SPACE], after) for after in following]
    ends += [(["\n", _SPACE], PARAMETER), (["\n?", *_chars(END_FUNCTION), _SPACE], END_TOOL_CALL)]
    ends += [(["\n?", *named, _SPACE], after) for after in following]  # last: the ends before are not names
    return _ends(ends)


def _glm45_ends() -> ValueEnds:
    """Return likewise those of glm45, where a line break before a mark is the value's own."""
    closing = [*_chars(END_ARG_VALUE[:-1]), _SPOILED, ">?", _SPACE]
    ends = [(closing, ARG_KEY), (closing, END_TOOL_CALL), (["\n", _SPACE], ARG_KEY)]
    ends.append((["\n", *_chars(END_TOOL_CALL), _SPACE], TOOL_CALL))
    return _ends(ends)


QWEN3_ENDS, GLM45_ENDS = _qwen3_ends(), _glm45_ends()


def read_qwen3_xml(reader: CallReader) -> Reading[None]:
    """Read ``<tool_call><function=f><parameter=key>value</parameter></function></tool_call>``, any number of times
    between content, with a line break around each value. Outer marks and end marks may be missing, and several
    functions may be within one outer mark, or objects of calls, as in hermes.
    """
    next_mark, within = "", False
    while marker := next_mark or (yield from reader.content(TOOL_CALL, FUNCTION)):
        within = marker == TOOL_CALL or bool(next_mark and within)
        arguments, next_mark = None, ""
        try:
            if marker == TOOL_CALL:
                yield from reader.spaces()
                if reader.char in OBJECTS:
                    next_mark = yield from tagged_objects(reader, TOOL_CALL, END_TOOL_CALL)
                    continue
                yield from reader.literal(FUNCTION)
            name = reader.name(_unquoted((yield from _until(reader, ">"))))
            yield from reader.spaces()
            mark = yield from reader.one_of((PARAMETER, END_FUNCTION, END_TOOL_CALL))
            arguments = _Arguments(reader, name)
            while mark == PARAMETER:
                key = _unquoted((yield from _until(reader, ">")))
                mark = yield from arguments.read(key, QWEN3_ENDS, lines=True)
            arguments.end()
            yield from reader.spaces()
            if mark == END_FUNCTION and reader.char:
                if within:
                    reader.drop()
                if within or reader.char == END_TOOL_CALL[0]:
                    mark = yield from reader.close(END_TOOL_CALL, FUNCTION, TOOL_CALL)
                    next_mark = "" if mark == END_TOOL_CALL else mark
        except NotACallError:
            _give_up(reader, arguments)


def read_glm45(reader: CallReader) -> Reading[None]:
    """Read ``<tool_call>f<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>``, any number of times between
    content. There may be line breaks between the marks, end marks may be missing, and there may be objects of calls, as
    in hermes, in place of a call."""
    next_mark = ""
    while next_mark or (yield from reader.content(TOOL_CALL)):
        arguments, next_mark = None, ""
        try:
            yield from reader.spaces()
            if reader.char in OBJECTS:
                next_mark = yield from tagged_objects(reader, TOOL_CALL, END_TOOL_CALL)
                continue
            name = reader.name(_unquoted((yield from _until(reader, "<\n"))))
            yield from reader.spaces()
            mark = yield from reader.one_of((ARG_KEY, END_TOOL_CALL))
            arguments = _Arguments(reader, name)
            while mark == ARG_KEY:
                key = _unquoted((yield from _until(reader, "<")))
                yield from reader.literal(END_ARG_KEY)
                yield from reader.spaces()
                yield from reader.literal(ARG_VALUE)
                mark = yield from arguments.read(key, GLM45_ENDS, lines=False)
            arguments.end()
            next_mark = mark if mark == TOOL_CALL else ""
        except NotACallError:
            _give_up(reader, arguments)


class _Arguments:
    """The arguments of one call, which begins with them, written as a JSON object while they are read."""

    def __init__(self, reader: CallReader, name: str) -> None:
        reader.begin(name)
        self._reader = reader
        self._schemas = Schemas(reader.tools[name])
        self._any = False
        self.ended = False

    def read(self, key: str, ends: ValueEnds, *, lines: bool) -> Reading[str]:
        """Read a value and what ends it, and return the last mark of that; "" at the text's end. ``lines``: a line
        break around a value is none of its own. Raises NotACallError where the text was cut."""
        reader, schema = self._reader, self._schemas.member(key)
        reader.drop()
        before = f"{', ' if self._any else '{'}{json.dumps(key, ensure_ascii=False)}: "
        reader.write(before)
        self._any = True
        if self._schemas.is_text(schema):
            reader.write('"')
            mark = yield from _read_value(reader, key, ends, _Text(reader), lines=lines)
            reader.write('"')
            return mark
        value = _Value(structured=not self._schemas.kinds(schema).isdisjoint({"array", "object"}))
        mark = yield from _read_value(reader, key, ends, value, lines=lines)
        reader.write(typed("".join(value.pieces), schema, self._schemas))
        return mark

    def end(self) -> None:
        self._reader.write("}" if self._any else "{}")
        self._reader.end()
        self._reader.drop()
        self.ended = True


class _Text:
    """A value that is a text, told as it comes. No mark is within quotes."""

    quoted = False

    def __init__(self, reader: CallReader) -> None:
        self._write: Callable[[str], None] = reader.write

    def take(self, text: str) -> None:
        self._write(json.dumps(text, ensure_ascii=False)[1:-1])


class _Value:
    """A value of which the type is known at its end only. ``quoted``: whether a JSON text within it has not ended, in
    which marks are text; a line break, which no such text has, ends it too."""

    def __init__(self, *, structured: bool) -> None:
        """``structured``: whether it may be a list or an object."""
        self.pieces: list[str] = []
        self.quoted = False
        self._escaped = False
        self._structured: bool | None = None if structured else False

    def take(self, text: str) -> None:
        self.pieces.append(text)
        for char in text:
            if self._structured is None and not char.isspace():
                self._structured = char in "{["
            if self._escaped or char == "\n":
                self._escaped = False
                self.quoted &= char != "\n"
            elif char == "\\":
                self._escaped = self.quoted
            elif char == '"' and self._structured:
                self.quoted = not self.quoted


def _read_value(reader: CallReader, key: str, ends: ValueEnds, value: _Text | _Value, *, lines: bool) -> Reading[str]:
    """Give a value to ``value``; see _Arguments.read."""
    if lines and reader.char == "\n":
        yield from reader.skip()
    while reader.char:
        if not reader.held and reader.char not in "\n<":
            value.take(reader.char)
            yield from reader.skip()
            continue
        yield from reader.read()
        while held := reader.held:
            counts = held[0] == "\n" or not value.quoted
            if counts and (mark := ends.mark(held, key)):
                reader.drop()
                return mark
            if counts and ends.begun.fullmatch(held):
                break
            length = next((i for i, char in enumerate(held) if i and char in "\n<"), len(held))
            value.take(held[:length])
            reader.keep(held[length:])
    if reader.cut:
        raise NotACallError
    held = reader.held
    if not held.lstrip("\n").startswith("</"):
        value.take("" if lines and held == "\n" else held)
    reader.drop()
    return ""


def _until(reader: CallReader, ends: str) -> Reading[str]:
    """Read a name up to one of these characters, which stays unread, except ``>``. Raises NotACallError where none is
    on the line."""
    start = len(reader.held)
    while not reader.char or reader.char not in ends:
        if reader.char in ("", "\n"):
            raise NotACallError
        yield from reader.read()
    result = reader.held[start:]
    if reader.char == ">":
        yield from reader.read()
    return result


def _unquoted(name: str) -> str:
    """Return a name without the quotes around it that some models write."""
    name = name.strip()
    return name[1:-1] if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'" else name


def _give_up(reader: CallReader, arguments: _Arguments | None) -> None:
    """Make content of what is held, unless a call has begun with it: that ends, if the text was not cut within it."""
    if arguments is None or arguments.ended:
        reader.give_up()
    elif reader.cut:
        reader.drop()
    else:
        arguments.end()
