"""Tell what a model thinks, between two marks, from what it answers after that."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxgen.server.tool_calls.deltas import Delta, Reasoning
from jaxgen.server.tool_calls.parser import MessageParser, PlainParser


class ThinkMarks(NamedTuple):
    """The marks before and after reasoning. ``tokens``: the parts of them that may be single tokens."""

    begin: str
    end: str
    tokens: tuple[str, ...]


THINK, END_THINK = "<think>", "</think>"
THINK_MARKS = ThinkMarks(THINK, END_THINK, (THINK, END_THINK))
CHANNEL_MARKS = ThinkMarks("<|channel>thought", "<channel|>", ("<|channel>", "<channel|>"))
"""Of Gemma 4."""


class ThinkParser:
    """Reads reasoning at the beginning of a message, and gives the text after it to another parser.

    It begins within the reasoning where the prompt has opened it (``inside``); else reasoning is what follows a
    mark before which the message has white space alone. Marks in other places are text, as the model wrote them.
    White space at the ends of the reasoning, and before the answer after it, is left out.
    """

    def __init__(
        self,
        answer: MessageParser | None = None,
        marks: ThinkMarks = THINK_MARKS,
        *,
        inside: bool = False,
        interrupts: str = "",
    ) -> None:
        """``answer``: parser of the text after the reasoning; None: all of that is content. ``interrupts``: text that
        ends the reasoning as well, and belongs to the answer; empty: none does."""
        self._answer = PlainParser() if answer is None else answer
        self._marks = marks
        self._ends = (marks.end, interrupts) if interrupts else (marks.end,)
        self._inside = inside
        self._held = ""
        """Characters that may belong to a mark, or are white space at an end of the reasoning."""
        self._may_repeat = inside
        """Whether a mark that comes first repeats that of the prompt."""
        self._thought = inside
        """Whether the message has reasoning."""
        self._begun = False
        """Whether the reasoning has a character other than white space."""
        self._answering = False
        self._length = 0
        self.starts: list[tuple[int, int]] = []
        self.done = False

    @property
    def called(self) -> bool:
        return self._answer.called

    @property
    def reasons(self) -> bool:
        return self._inside

    def in_call(self, *, after: bool) -> bool:
        return not self._inside and self._answer.in_call(after=after)

    def push(self, text: str) -> tuple[Delta, ...]:
        if self._answering:
            return self._to_answer(text)
        self._length += len(text)
        self._held += text
        deltas: list[Delta] = []
        if not self._inside and not self._thought:
            self._read_beginning()
        if self._inside:
            deltas += self._read_reasoning()
        if self._thought and not self._inside:
            self._held = self._held.lstrip()
            self._answering = bool(self._held)
        if self._answering:
            held, self._held = self._held, ""
            if self._thought:
                self.starts.append((0, self._length - len(held)))
            deltas += self._to_answer(held)
        return tuple(deltas)

    def finish(self, *, cut: bool = False) -> tuple[Delta, ...]:
        self.done = True
        held, self._held = self._held, ""
        if self._inside:
            if cut:
                marks = (*self._ends, self._marks.begin) if self._may_repeat else self._ends
                held = held[: len(held) - _overlap(held, marks)]
            held = held.rstrip()
            return (Reasoning(held),) if held else ()
        before: tuple[Delta, ...] = ()
        if not self._thought and held and not (cut and held.strip()):
            before = self._answer.push(held)
        return (*before, *self._answer.finish(cut=cut))

    def _read_beginning(self) -> None:
        """Find out whether the message begins with reasoning, as soon as its characters say so."""
        text = self._held.lstrip()
        if text.startswith(self._marks.begin):
            self._held = text.removeprefix(self._marks.begin)
            self._inside = self._thought = True
        elif not self._marks.begin.startswith(text):
            self._answering = True

    def _read_reasoning(self) -> tuple[Delta, ...]:
        if not self._begun:
            self._held = self._held.lstrip()
            if self._may_repeat:
                if len(self._held) < len(self._marks.begin) and self._marks.begin.startswith(self._held):
                    return ()
                self._may_repeat = False
                self._held = self._held.removeprefix(self._marks.begin).lstrip()
        end = min(self._ends, key=lambda mark: self._held.find(mark) % (len(self._held) + 1))
        thought, mark, rest = self._held.partition(end)
        if mark:
            self._inside = False
            self._held = rest if end == self._marks.end else end + rest
            thought = thought.rstrip()
        else:
            thought = thought[: len(thought) - _overlap(thought, self._ends)].rstrip()
            self._held = self._held[len(thought) :]
        self._begun = self._begun or bool(thought)
        return (Reasoning(thought),) if thought else ()

    def _to_answer(self, text: str) -> tuple[Delta, ...]:
        deltas = self._answer.push(text)
        self.done = self._answer.done
        return deltas


def _overlap(text: str, marks: Sequence[str]) -> int:
    """Return the length of the longest end of the text with which one of the marks may begin."""
    most = max(len(mark) for mark in marks) - 1
    lengths = range(min(most, len(text)), 0, -1)
    return next((length for length in lengths if any(mark.startswith(text[len(text) - length :]) for mark in marks)), 0)
