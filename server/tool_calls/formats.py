"""The formats in which models write tool calls: how each is parsed, recognised and required.

A format's ``read`` is a parser as a coroutine: it reads a whole message, and treats an invalid call as content.
"""

import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from jaxgen.server.tool_calls.call_objects import OBJECTS, arguments, call_objects, closers, tagged_objects
from jaxgen.server.tool_calls.gemma4 import BEGIN, CALL, END, QUOTE, read_gemma4
from jaxgen.server.tool_calls.reader import CallReader, NotACallError, Reading
from jaxgen.server.tool_calls.xml_formats import (
    END_TOOL_CALL,
    GLM45_ENDS,
    QWEN3_ENDS,
    TOOL_CALL,
    read_glm45,
    read_qwen3_xml,
)

PYTHON_TAG = "<|python_tag|>"
TOOL_CALLS, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"

_ALPHANUMERIC = string.ascii_letters + string.digits
_NAME = frozenset(_ALPHANUMERIC + "_-.")


def call_id(choice: str, position: int) -> str:
    """Return the id of a call, which only depends on the name of the choice and on its number there.

    So a stream that resumes at another server names its calls as before.
    """
    return f"call_{_hashed(choice, position).hex()[:24]}"


def _short_call_id(choice: str, position: int) -> str:
    """Return an id of 9 characters: Mistral's templates take no other."""
    return "".join(_ALPHANUMERIC[byte % len(_ALPHANUMERIC)] for byte in _hashed(choice, position)[:9])


def _hashed(choice: str, position: int) -> bytes:
    return sha256(f"{choice}:{position}".encode()).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """The format in which a family of models writes calls.

    ``sign``: a regular expression that matches the chat templates of such models only. ``markers``: strings that may be
    single tokens, perhaps special ones. Required calls come between ``opening`` and ``closing``, with ``separator``
    between two. Each is ``before``, in which ``{name}`` stands for the tool's name, then the arguments, then ``after``.
    A space after a marker may be missing: some tokenizers of a family write it, others do not. The arguments are one
    JSON object; with ``argument``, which has ``{key}`` and ``{value}``, each is written so, texts without quotes. With
    ``quote`` they are an object whose texts are between two of these, and whose keys need none.
    ``ends``: a regular expression of what ends a value, and so is not within a text.
    ``interrupts``: text that begins a call even within reasoning that has not ended; empty: none does.
    """

    read: Callable[[CallReader], Reading[None]]
    sign: str
    markers: tuple[str, ...]
    opening: str = ""
    before: str
    after: str
    separator: str
    closing: str = ""
    argument: str = ""
    quote: str = ""
    end_markers: str = ""
    interrupts: str = ""
    call_id: Callable[[str, int], str] = call_id


def _read_hermes(reader: CallReader) -> Reading[None]:
    """Read ``<tool_call>{"name": "f", "arguments": {}}</tool_call>``, any number of times between content. There may be
    several objects between two marks, and the end mark may be missing before another call."""
    next_mark = ""
    while next_mark or (yield from reader.content(TOOL_CALL)):
        next_mark = ""
        try:
            next_mark = yield from tagged_objects(reader, TOOL_CALL, END_TOOL_CALL)
        except NotACallError:
            reader.give_up()


def _read_llama3(reader: CallReader) -> Reading[None]:
    """Read ``{"name": "f", "parameters": {}}`` at the start of the message, or after ``<|python_tag|>`` anywhere."""
    yield from reader.spaces()
    begins_with_call = reader.char in OBJECTS
    while begins_with_call or (yield from reader.content(PYTHON_TAG)):
        begins_with_call = False
        try:
            yield from call_objects(reader)
        except NotACallError:
            reader.give_up()


def _read_mistral(reader: CallReader) -> Reading[None]:
    """Read ``[TOOL_CALLS]``, then a list, ``[{"name": "f", "arguments": {}}]``, or ``f[ARGS]{}``.

    The latter is the format since version 11 of Mistral's tokenizer.
    """
    while (yield from reader.content(TOOL_CALLS)):
        try:
            yield from reader.spaces()
            if reader.char in OBJECTS:
                yield from call_objects(reader)
                continue
            yield from _read_named(reader)
            yield from reader.spaces()
            while reader.char in _NAME:  # another, without a mark of its own
                yield from _read_named(reader)
                yield from reader.spaces()
        except NotACallError:
            reader.give_up()


def _read_named(reader: CallReader) -> Reading[None]:
    name = yield from _read_word(reader)
    if reader.char == "[":
        yield from reader.literal("[")
        if reader.char == CALL_ID[1]:
            yield from reader.literal(CALL_ID[1:])
            yield from _read_word(reader)
            yield from reader.literal("[")
        yield from reader.literal(ARGS[1:])
    yield from reader.spaces()
    yield from arguments(reader, reader.name(name))
    if reader.char == "}":
        yield from closers(reader)
        reader.drop()


def _read_word(reader: CallReader) -> Reading[str]:
    word = []
    while reader.char in _NAME:
        word.append(reader.char)
        yield from reader.read()
    return "".join(word)


HERMES = ToolFormat(
    read=_read_hermes,
    sign=r'<tool_call>.*"arguments\\?"',
    markers=(TOOL_CALL, END_TOOL_CALL),
    before=TOOL_CALL + '\n{"name": "{name}", "arguments": ',
    after="}\n" + END_TOOL_CALL,
    separator="\n",
)
LLAMA3_JSON = ToolFormat(
    read=_read_llama3,
    sign=r'"name": function name, "parameters": ',
    markers=(PYTHON_TAG,),
    before='{"name": "{name}", "parameters": ',
    after="}",
    separator="; ",
)
MISTRAL = ToolFormat(
    read=_read_mistral,
    sign=r"\[TOOL_CALLS\]",
    markers=(TOOL_CALLS,),
    opening=TOOL_CALLS + " [",
    before='{"name": "{name}", "arguments": ',
    after="}",
    separator=", ",
    closing="]",
    call_id=_short_call_id,
)
MISTRAL_V11 = ToolFormat(
    read=_read_mistral,
    sign=r"\[TOOL_CALLS\].*\[ARGS\]",
    markers=(TOOL_CALLS, CALL_ID, ARGS),
    before=TOOL_CALLS + "{name}" + ARGS,
    after="",
    separator="",
    call_id=_short_call_id,
)

QWEN3_XML = ToolFormat(
    read=read_qwen3_xml,
    sign=r"<function=.*<parameter=",
    markers=(TOOL_CALL, END_TOOL_CALL),
    before=TOOL_CALL + "\n<function={name}>\n",
    argument="<parameter={key}>\n{value}\n</parameter>\n",
    end_markers=QWEN3_ENDS.whole.pattern,
    after="</function>\n" + END_TOOL_CALL,
    separator="\n",
    interrupts=TOOL_CALL + "\n<function=",
)
GLM45 = ToolFormat(
    read=read_glm45,
    sign=r"<arg_key>.*<arg_value>",
    markers=(TOOL_CALL, END_TOOL_CALL, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    before=TOOL_CALL + "{name}\n",
    argument="<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
    end_markers=GLM45_ENDS.whole.pattern,
    after=END_TOOL_CALL,
    separator="\n",
)
GEMMA4 = ToolFormat(
    read=read_gemma4,
    sign=re.escape(BEGIN + CALL),
    markers=(BEGIN, END, QUOTE),
    before=BEGIN + CALL + "{name}",
    quote=QUOTE,
    after=END,
    separator="",
    interrupts=BEGIN + CALL,
)

FORMATS = {
    "gemma4": GEMMA4,
    "qwen3_xml": QWEN3_XML,
    "glm45": GLM45,
    "hermes": HERMES,
    "llama3_json": LLAMA3_JSON,
    "mistral_v11": MISTRAL_V11,
    "mistral": MISTRAL,
}
"""By name, of two whose signs a template shows the one that is meant first."""
