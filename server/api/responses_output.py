"""Build the output items of a response piece by piece, and their events."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from jaxgen.server.tool_calls.deltas import CallStart, Delta

type Event = dict[str, Any]
"""An event without its sequence number."""


class Output:
    """Messages and function calls, in the order in which the model wrote them; at most the last is in progress."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []

    def add(self, delta: Delta) -> Iterator[Event]:
        """Add a piece to the items, and yield its events."""
        if isinstance(delta, str):
            if self._open != "message":
                yield from self._begin_message()
            self.items[-1]["content"][0]["text"] += delta
            yield self._event("response.output_text.delta", content_index=0, delta=delta, logprobs=[])
        elif isinstance(delta, CallStart):
            call = {"type": "function_call", "call_id": delta.call_id, "name": delta.name, "arguments": ""}
            yield from self._begin(call, "fc")
        else:
            self.items[-1]["arguments"] += delta.text
            yield self._event("response.function_call_arguments.delta", delta=delta.text)

    def end(self, status: str) -> Iterator[Event]:
        """Yield the events of the end. The last item gets ``status``; without items an empty message is added."""
        if not self.items:
            yield from self._begin_message()
        yield from self._close(status)

    @property
    def _open(self) -> str | None:
        """The type of the item in progress; None: no item is."""
        unfinished = self.items and self.items[-1]["status"] == "in_progress"
        return self.items[-1]["type"] if unfinished else None

    def _begin_message(self) -> Iterator[Event]:
        yield from self._begin({"type": "message", "role": "assistant", "content": []}, "msg")
        part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self.items[-1]["content"].append(part)
        yield self._event("response.content_part.added", content_index=0, part=dict(part))

    def _begin(self, item: dict[str, Any], prefix: str) -> Iterator[Event]:
        yield from self._close("completed")
        self.items.append({"id": f"{prefix}_{uuid4().hex}", "status": "in_progress", **item})
        yield self._item_event("response.output_item.added")

    def _close(self, status: str) -> Iterator[Event]:
        kind = self._open
        if kind is None:
            return
        item = self.items[-1]
        item["status"] = status
        if kind == "message":
            (part,) = item["content"]
            yield self._event("response.output_text.done", content_index=0, text=part["text"], logprobs=[])
            yield self._event("response.content_part.done", content_index=0, part=dict(part))
        else:
            yield self._event("response.function_call_arguments.done", name=item["name"], arguments=item["arguments"])
        yield self._item_event("response.output_item.done")

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **fields}

    def _item_event(self, kind: str) -> Event:
        item = self.items[-1]
        copied = {**item, "content": list(map(dict, item["content"]))} if "content" in item else dict(item)
        return {"type": kind, "output_index": len(self.items) - 1, "item": copied}
