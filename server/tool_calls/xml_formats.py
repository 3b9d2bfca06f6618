"""Formats in which each argument of a call has marks of its own, and only values other than texts are JSON."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from jaxgen.server.tool_calls.reader import CallReader, NotACallError, Reading
from jaxgen.server.tool_calls.typed_values import is_text, typed

TOOL_CALL, END_TOOL_CALL = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
ARG_KEY, END_ARG_KEY = "<arg_key>", "</arg_key>"
ARG_VALUE, END_ARG_VALUE = "<arg_value>", "</arg_value>"


def read_qwen3_xml(reader: CallReader) -> Reading[None]:
    """Read ``<tool_call><function=f><parameter=key>value</parameter></function></tool_call>``, any number of times
    between content, with a line break around each value. The outer marks may be missing.
    """
    while marker := (yield from reader.content(TOOL_CALL, FUNCTION)):
        begun = reader.num_calls
        try:
            if marker == TOOL_CALL:
                yield from reader.spaces()
                yield from reader.literal(FUNCTION)
            name = reader.name((yield from _until(reader, ">")).strip())
            yield from reader.spaces()
            mark = yield from reader.one_of((PARAMETER, END_FUNCTION))
            arguments = _Arguments(reader, name)
            while mark == PARAMETER:
                key = (yield from _until(reader, ">")).strip()
                yield from arguments.read(key, END_PARAMETER, lines=True)
                mark = yield from _next_mark(reader, PARAMETER, END_FUNCTION)
            arguments.end()
            yield from reader.spaces()
            if marker == TOOL_CALL:
                reader.drop()
            if marker == TOOL_CALL or reader.char == END_TOOL_CALL[0]:
                yield from reader.literal(END_TOOL_CALL)
                reader.drop()
        except NotACallError:
            _give_up(reader, begun)


def read_glm45(reader: CallReader) -> Reading[None]:
    """Read ``<tool_call>f<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>``, any number of times between
    content. There may be line breaks between the marks."""
    while (yield from reader.content(TOOL_CALL)):
        begun = reader.num_calls
        try:
            yield from reader.spaces()
            name = reader.name((yield from _until(reader, "<\n")).strip())
            yield from reader.spaces()
            mark = yield from reader.one_of((ARG_KEY, END_TOOL_CALL))
            arguments = _Arguments(reader, name)
            while mark == ARG_KEY:
                key = (yield from _until(reader, "<")).strip()
                yield from reader.literal(END_ARG_KEY)
                yield from reader.spaces()
                yield from reader.literal(ARG_VALUE)
                yield from arguments.read(key, END_ARG_VALUE, lines=False)
                mark = yield from _next_mark(reader, ARG_KEY, END_TOOL_CALL)
            arguments.end()
        except NotACallError:
            _give_up(reader, begun)


class _Arguments:
    """The arguments of one call, which begins with them, written as a JSON object while they are read."""

    def __init__(self, reader: CallReader, name: str) -> None:
        reader.begin(name)
        self._reader = reader
        self._schema = reader.tools[name]
        self._any = False

    def read(self, key: str, mark: str, *, lines: bool) -> Reading[None]:
        """Read a value up to and with its end ``mark``. ``lines``: a line break around it is none of its own."""
        reader, schema = self._reader, _schema_of(key, self._schema)
        reader.drop()
        reader.write(f"{', ' if self._any else '{'}{json.dumps(key, ensure_ascii=False)}: ")
        self._any = True
        if is_text(schema, self._schema):
            reader.write('"')
            yield from _read_value(reader, mark, lambda text: reader.write(_escaped(text)), lines=lines)
            reader.write('"')
            return
        pieces: list[str] = []
        yield from _read_value(reader, mark, pieces.append, lines=lines)
        reader.write(typed("".join(pieces), schema, self._schema))

    def end(self) -> None:
        self._reader.write("}" if self._any else "{}")
        self._reader.end()
        self._reader.drop()


def _schema_of(key: str, schema: Mapping[str, Any]) -> Any:
    """Return the schema of a member; None: nothing is said of it."""
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and key in properties:
        return properties[key]
    more = schema.get("additionalProperties")
    return more if isinstance(more, Mapping) else None


def _read_value(reader: CallReader, mark: str, take: Callable[[str], Any], *, lines: bool) -> Reading[None]:
    """Read up to and with ``mark``, and give what is before it to ``take``. Raises NotACallError at the text's end."""
    if lines and reader.char == "\n":
        yield from reader.skip()
    while reader.char:
        if reader.char == mark[0]:
            try:
                yield from reader.literal(mark)
                reader.drop()
                return
            except NotACallError:
                take(reader.held)
                reader.drop()
                continue
        if reader.held:  # a line break that is not the last one
            take(reader.held)
            reader.drop()
        if lines and reader.char == "\n":
            yield from reader.read()
        else:
            take(reader.char)
            yield from reader.skip()
    raise NotACallError


def _next_mark(reader: CallReader, *marks: str) -> Reading[str]:
    """Skip what stands between a call's marks, and read one of these. Raises NotACallError at the text's end."""
    while reader.char:
        try:
            return (yield from reader.one_of(marks))
        except NotACallError:
            if reader.char and reader.char != marks[0][0]:
                yield from reader.read()
    raise NotACallError


def _until(reader: CallReader, ends: str) -> Reading[str]:
    """Read a name up to one of these characters, which stays unread but for ``>``. Raises NotACallError where none is
    on the line."""
    start = len(reader.held)
    while not reader.char or reader.char not in ends:
        if reader.char in ("", "\n"):
            raise NotACallError
        yield from reader.read()
    found = reader.held[start:]
    if reader.char == ">":
        yield from reader.read()
    return found


def _give_up(reader: CallReader, begun: int) -> None:
    """Make content of what is held, unless a call has begun with it and not ended."""
    if reader.num_calls > begun and reader.num_ended < reader.num_calls:
        reader.drop()
    else:
        reader.give_up()


def _escaped(text: str) -> str:
    """Return a text as within quotes in JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
