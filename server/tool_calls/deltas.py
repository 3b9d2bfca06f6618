"""Pieces of a model's text: content, and parts of tool calls. Host only."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class CallStart(NamedTuple):
    """The beginning of a call. ``position`` counts the calls of one message from 0; ``call_id`` is random."""

    position: int
    call_id: str
    name: str


class Arguments(NamedTuple):
    """More of the JSON text of a call's arguments, as the model wrote it."""

    position: int
    text: str


type Delta = str | CallStart | Arguments
"""A piece of a message; a str is content."""


def merged(deltas: Sequence[Delta]) -> tuple[Delta, ...]:
    """Join neighbours that are both content, or both arguments of one call."""
    if len(deltas) < 2:  # at nearly every token of a stream
        return tuple(deltas)
    found: list[Delta] = []
    run: list[str] = []
    kind: int | None = None  # of the run: -1 for content, else the call's position

    def close() -> None:
        if run:
            text = "".join(run)
            found.append(text if kind is None or kind < 0 else Arguments(kind, text))
            run.clear()

    for delta in deltas:
        if isinstance(delta, CallStart):
            close()
            found.append(delta)
            continue
        position, text = (-1, delta) if isinstance(delta, str) else delta
        if position != kind:
            close()
            kind = position
        run.append(text)
    close()
    return tuple(found)


def content_of(deltas: Iterable[Delta]) -> str:
    """Return the content of the deltas."""
    return "".join([delta for delta in deltas if isinstance(delta, str)])


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
