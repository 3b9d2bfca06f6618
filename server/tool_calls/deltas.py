"""Pieces of a model's text: reasoning, content, and parts of tool calls. Host only."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class CallStart(NamedTuple):
    """The beginning of a call. ``position`` counts the calls of one message from 0."""

    position: int
    call_id: str
    name: str


class Arguments(NamedTuple):
    """More of the JSON text of a call's arguments, as the model wrote it."""

    position: int
    text: str


class Reasoning(NamedTuple):
    """More of what the model thinks before it answers."""

    text: str


type Delta = str | Reasoning | CallStart | Arguments
"""A piece of a message; a str is content."""

_CONTENT, _REASONING = -1, -2


def merged(deltas: Sequence[Delta]) -> tuple[Delta, ...]:
    """Join neighbours that are both content, both reasoning, or both arguments of one call."""
    if len(deltas) < 2:  # at nearly every token of a stream
        return tuple(deltas)
    result: list[Delta] = []
    run: list[str] = []
    kind = _CONTENT  # of the run; a call's position stands for its arguments

    def close() -> None:
        if run:
            result.append(_piece(kind, "".join(run)))
            run.clear()

    for delta in deltas:
        if isinstance(delta, CallStart):
            close()
            result.append(delta)
            continue
        if isinstance(delta, str):
            position, text = _CONTENT, delta
        else:
            position, text = (_REASONING, delta.text) if isinstance(delta, Reasoning) else delta
        if position != kind:
            close()
            kind = position
        run.append(text)
    close()
    return tuple(result)


def _piece(kind: int, text: str) -> Delta:
    if kind == _CONTENT:
        return text
    return Reasoning(text) if kind == _REASONING else Arguments(kind, text)


def content_of(deltas: Iterable[Delta]) -> str:
    """Return the content of the deltas."""
    return "".join([delta for delta in deltas if isinstance(delta, str)])


def reasoning_of(deltas: Iterable[Delta]) -> str:
    """Return the reasoning of the deltas."""
    return "".join([delta.text for delta in deltas if isinstance(delta, Reasoning)])


def calls_of(deltas: Iterable[Delta]) -> list[dict[str, Any]]:
    """Return the calls of the deltas as OpenAI's ``tool_calls``. The deltas begin with the message."""
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        if isinstance(delta, CallStart):
            function = {"name": delta.name, "arguments": ""}
            calls.append({"id": delta.call_id, "type": "function", "function": function})
        elif isinstance(delta, Arguments):
            calls[delta.position]["function"]["arguments"] += delta.text
    return calls
