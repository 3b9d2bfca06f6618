"""Build the output items of a response piece by piece, and their events."""

from collections.abc import Iterator
from typing import Any, override
from uuid import uuid4

from jaxgen.server.generation.logprobs import ChatLogprobs
from jaxgen.server.tool_calls.deltas import CallStart, Delta

type Event = dict[str, Any]
"""An event without its sequence number."""


class Output:
    """Messages and function calls, in the order in which the model wrote them; at most the last is in progress.

    Log-probabilities are of the tokens of the text before the first call: those of calls, and of the end, are of no
    part of a message.
    """

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._untold: list[dict[str, Any]] = []
        """Log-probabilities of tokens whose text has not been added."""
        self._offsets: list[int] = []
        """Where the text of each of them begins."""
        self._length = 0
        """Characters of the text so far."""
        self._has_calls = False

    def add_logprobs(self, found: dict[str, Any]) -> None:
        """Add what ItemLogprobs has found, before the text of these tokens."""
        if not self._has_calls:
            self._untold += found["content"]
            self._offsets += found["offsets"]

    def add(self, delta: Delta) -> Iterator[Event]:
        """Add a piece to the items, and yield its events."""
        if isinstance(delta, str):
            if self._open != "message":
                yield from self._begin_message()
            (part,) = self.items[-1]["content"]
            part["text"] += delta
            told = self._told(len(delta))
            part["logprobs"] += told
            yield self._event("response.output_text.delta", content_index=0, delta=delta, logprobs=told)
        elif isinstance(delta, CallStart):
            self._has_calls = True
            self._untold.clear()
            self._offsets.clear()
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

    def _told(self, length: int) -> list[dict[str, Any]]:
        """Remove and return the log-probabilities of tokens that begin within the next characters of the text."""
        self._length += length
        count = sum(offset < self._length for offset in self._offsets)
        told = self._untold[:count]
        del self._untold[:count], self._offsets[:count]
        return told

    @property
    def _open(self) -> str | None:
        """The type of the item in progress; None: no item is."""
        unfinished = self.items and self.items[-1]["status"] == "in_progress"
        return self.items[-1]["type"] if unfinished else None

    def _begin_message(self) -> Iterator[Event]:
        yield from self._begin({"type": "message", "role": "assistant", "content": []}, "msg")
        part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self.items[-1]["content"].append(part)
        yield self._event("response.content_part.added", content_index=0, part={**part, "logprobs": []})

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
            yield self._event(
                "response.output_text.done", content_index=0, text=part["text"], logprobs=part["logprobs"]
            )
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


class ItemLogprobs(ChatLogprobs):
    """As of a chat, with the offsets of the tokens. A special token has no bytes, which are none here, not null."""

    @override
    def begins_within(self, length: int) -> bool:
        return False  # they are told with their text, never without any

    def take(self, length: int, *, ended: bool) -> dict[str, Any]:
        offsets = list(self._offsets)
        taken = super().take(length, ended=ended)["content"]
        entries = [{**_with_bytes(one), "top_logprobs": list(map(_with_bytes, one["top_logprobs"]))} for one in taken]
        return {"content": entries, "offsets": offsets[: len(entries)]}


def _with_bytes(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "bytes": entry["bytes"] or []}
