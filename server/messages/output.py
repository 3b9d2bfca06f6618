"""Build the content blocks of an answer of /v1/messages, and the events that grow them."""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import pydantic_core

from jaxgen.server.tool_calls.deltas import CallStart, Delta, Reasoning
from jaxgen.text.conversation_rewrites import parse_arguments

type Event = dict[str, Any]


class Blocks:
    """The blocks of one answer, in the order in which the model wrote them; at most the last is open."""

    def __init__(self) -> None:
        self.content: list[dict[str, Any]] = []
        self._open = ""
        """The type of the open block; empty: none is."""
        self._arguments = ""
        """JSON of the open call's input so far."""

    def add(self, delta: Delta) -> Iterator[Event]:
        """Add a piece of the answer, and yield its events."""
        if isinstance(delta, str):
            yield from self._grow("text", delta)
        elif isinstance(delta, Reasoning):
            yield from self._grow("thinking", delta.text)
        elif isinstance(delta, CallStart):
            yield from self._begin({"type": "tool_use", "id": delta.call_id, "name": delta.name, "input": {}})
        else:
            self._arguments += delta.text
            yield self._delta("input_json_delta", partial_json=delta.text)

    def end(self) -> Iterator[Event]:
        """Close the open block, and yield its events."""
        if not self._open:
            return
        block = self.content[-1]
        if self._open == "tool_use":
            block["input"] = _input(self._arguments)
            self._arguments = ""
        elif self._open == "thinking":
            block["signature"] = _signature(block["thinking"])
            yield self._delta("signature_delta", signature=block["signature"])
        self._open = ""
        yield {"type": "content_block_stop", "index": len(self.content) - 1}

    def _grow(self, kind: str, text: str) -> Iterator[Event]:
        """Add to the open block, which is made unless it is of this kind. A block has its text under its type."""
        if self._open != kind:
            more = {"signature": ""} if kind == "thinking" else {}
            yield from self._begin({"type": kind, kind: "", **more})
        self.content[-1][kind] += text
        yield self._delta(f"{kind}_delta", **{kind: text})

    def _begin(self, block: dict[str, Any]) -> Iterator[Event]:
        yield from self.end()
        self.content.append(block)
        self._open = block["type"]
        yield {"type": "content_block_start", "index": len(self.content) - 1, "content_block": dict(block)}

    def _delta(self, kind: str, **fields: str) -> Event:
        delta = {"type": kind, **fields}
        return {"type": "content_block_delta", "index": len(self.content) - 1, "delta": delta}


def _input(arguments: str) -> dict[str, Any]:
    """Return the input of a call: what is there of an object that was cut off, as Anthropic's SDKs read it."""
    parsed = parse_arguments(arguments)
    if parsed is not None:
        return parsed
    try:
        fields = pydantic_core.from_json(arguments, allow_inf_nan=False, allow_partial=True)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _signature(thought: str) -> str:
    """Return what clients want to see of a thinking block before they send it back. It is not checked then: a
    conversation may come from another server."""
    return blake2b(thought.encode(), digest_size=16).hexdigest()
