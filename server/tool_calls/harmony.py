"""Read the channels of gpt-oss's answers (OpenAI's harmony format): reasoning, content and calls.

A message is ``<|start|>``, a header, ``<|message|>``, a body and one of ``<|end|>``, ``<|call|>`` and ``<|return|>``.
The header has the role, ``<|channel|>`` and a channel, ``to=`` and a recipient, ``<|constrain|>`` and the type of the
body.
"""

import re
from collections.abc import Container

import pydantic_core

from jaxgen.server.tool_calls.deltas import Arguments, CallStart, Delta, Reasoning, merged
from jaxgen.server.tool_calls.formats import call_id
from jaxgen.server.tool_calls.lenient_json import JsonWriter, as_object

NAMES = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
MARKS = {name: chr(0xD800 + i) for i, name in enumerate(NAMES)}
"""The special tokens of the format, each with the character that stands for it in the text that is parsed. These are
surrogates, which no text has: the same names written in other tokens are text."""
START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN = MARKS.values()

_SPLIT = re.compile(f"([{''.join(MARKS.values())}])")
_RECIPIENT = re.compile(r"\bto=([^\s\ud800-\udfff]+)")
_ANALYSIS = re.compile(CHANNEL + r"\s*analysis\b")
_FUNCTIONS = "functions."


class HarmonyParser:
    """``push`` the text of an answer, in which MARKS stand for special tokens, then ``finish``: a MessageParser.

    The channel ``analysis`` is reasoning; what is sent to a known tool, on whatever channel, is a call; all else is
    content. Headers are left out, and so is what stands between messages.
    """

    def __init__(
        self, tools: Container[str] = (), most: int | None = None, *, reasoning: bool = True, name: str = ""
    ) -> None:
        """``tools``: names of the known ones. ``most``: number of calls that ends the answer; None: no limit.
        ``reasoning`` False: the analysis is content. ``name``: of the choice."""
        self._tools = tools
        self._most = most
        self._reasoning = reasoning
        self._name = name
        self._header = ""
        self._given = 0
        """Characters of the header that the prompt has."""
        self._in_body = False
        self._marked = False
        """Whether the answer has a mark."""
        self._kind = ""
        """What the body is: "analysis", "call" or "content"."""
        self._arguments = CallArguments()
        """Of the call that is read."""
        self._num_calls = 0
        self._num_ended = 0
        self._length = 0
        self._content_length = 0
        self._apart = False
        """Whether content that comes next does not continue that before it."""
        self.starts: list[tuple[int, int]] = []
        self.done = False

    @property
    def called(self) -> bool:
        return 0 < self._num_calls == self._num_ended

    @property
    def reasons(self) -> bool:
        return self._in_body and self._kind == "analysis"

    def in_call(self, *, after: bool) -> bool:  # noqa: ARG002  # after a call a header comes
        return not self._in_body or self._kind == "call"

    def begin(self, prompt: str) -> None:
        """Read what the prompt has of the answer's first message: what comes after its last ``<|start|>``."""
        self.push(prompt)
        self._length = self._content_length = 0
        self._marked = False
        self._given = len(self._header)
        self.starts.clear()

    def push(self, text: str) -> tuple[Delta, ...]:
        deltas: list[Delta] = []
        for piece in _SPLIT.split(text):
            if self.done or not piece:
                continue
            if piece in MARKS.values():
                self._marked = True
                deltas += self._read_mark(piece)
            elif self._in_body:
                deltas += self._read_body(piece)
            else:
                self._header += piece
            self._length += len(piece)
        return merged(deltas)

    def finish(self, *, cut: bool = False) -> tuple[Delta, ...]:
        if self.done:
            return ()
        self.done = True
        if not self._in_body:  # an answer without any mark is content
            text = self._header[self._given :]
            return (text,) if text and not self._marked else ()
        if self._kind == "call" and not cut:
            if not self._arguments.begun:
                return tuple(self._end_body())
            self._num_ended += self._arguments.is_object
        return ()

    def _read_mark(self, mark: str) -> list[Delta]:
        if mark in (CALL, RETURN, END):
            deltas = self._end_body()
            self.done = mark != END or self._num_ended == self._most
            return deltas
        if mark == START:
            return self._end_body()
        if not self._in_body:
            if mark == MESSAGE:
                return self._begin_body()
            self._header += mark
        return []

    def _begin_body(self) -> list[Delta]:
        header, self._header = self._header, ""
        self._in_body, self._apart = True, True
        to = _RECIPIENT.search(header)
        name = "" if to is None else to[1].removeprefix(_FUNCTIONS)
        if name and name in self._tools:
            self._kind, self._arguments = "call", CallArguments()
            self._num_calls += 1
            return [CallStart(self._num_calls - 1, call_id(self._name, self._num_calls - 1), name)]
        analysis = self._reasoning and _ANALYSIS.search(header) is not None
        self._kind = "analysis" if analysis else "content"
        return []

    def _read_body(self, text: str) -> list[Delta]:
        if self._kind == "call":
            text = self._arguments.push(text)
            return [Arguments(self._num_calls - 1, text)] if text else []
        if self._kind == "analysis":
            return [Reasoning(text)]
        if self._apart:
            self._apart = False
            self.starts.append((self._content_length, self._length))
        self._content_length += len(text)
        return [text]

    def _end_body(self) -> list[Delta]:
        was_call = self._in_body and self._kind == "call"
        self._in_body, self._header = False, ""
        if not was_call:
            return []
        self._num_ended += 1
        rest = self._arguments.finish()
        return [Arguments(self._num_calls - 1, rest)] if rest else []


class CallArguments:
    """The arguments of one call: an object is told as it comes, what stands in its place at its end."""

    def __init__(self) -> None:
        self.begun = False
        """Whether they are an object, of which something was told."""
        self._held = ""
        self._writer = JsonWriter()
        self._sent: list[str] = []

    @property
    def is_object(self) -> bool:
        """Whether what was told is the JSON of an object, and so the arguments are complete."""
        try:
            return isinstance(pydantic_core.from_json("".join(self._sent)), dict)
        except ValueError:
            return False

    def push(self, text: str) -> str:
        """Return what is certain with this text."""
        if not self.begun:
            self._held += text
            if not self._held.lstrip().startswith("{"):
                return ""
            self.begun, text, self._held = True, self._held, ""
        text = "".join(map(self._writer.push, text))
        self._sent.append(text)
        return text

    def finish(self) -> str:
        """Return the rest; a text that is not an object is returned as it is."""
        if self.begun:
            return self._writer.finish()
        try:
            return as_object(self._held)
        except ValueError:
            return self._held
