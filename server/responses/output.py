"""Build the output items of a response piece by piece, and their events."""

from collections.abc import Generator, Iterator, Sequence
from hashlib import sha256
from typing import Any, override

from jaxgen.server.generation.logprobs import AnswerToken, ChatLogprobs, LazyList
from jaxgen.server.tool_calls.deltas import CallStart, Delta, Reasoning
from jaxgen.text.conversation_rewrites import parse_arguments

type Event = dict[str, Any]
"""An event without its sequence number."""

_TEXTS = {"message": "output_text", "reasoning": "reasoning_text"}
"""By the type of an item with a text: the type of its part, and of the part's events."""


def item_id(prefix: str, name: str, place: int) -> str:
    """Return the id of an item, which only depends on its kind, the name of what has it, and its place there.

    So a stream that resumes at another server names its items as before.
    """
    return f"{prefix}_{sha256(f'{name}-{place}'.encode()).hexdigest()[:32]}"


class Output:
    """Reasoning, messages and function calls, in the order in which the model wrote them; at most the last is in
    progress.

    Log-probabilities are of the tokens of the text before the first call: those of calls, and of the end, are of no
    part of a message.
    """

    def __init__(self, name: str, starts: Sequence[tuple[int, int]] = ()) -> None:
        """``name``: of the response, from which the ids of its items are made. ``starts``: where messages go on after
        something else, which may grow; see MessageParser."""
        self._name = name
        self._starts = starts
        self.items: list[dict[str, Any]] = []
        self._unsent: list[dict[str, Any]] = []
        """Log-probabilities of tokens whose text has not been added."""
        self._offsets: list[int] = []
        """Where the text of each of them begins."""
        self._length = 0
        """Characters of messages so far."""
        self._has_calls = False

    def add_logprobs(self, logprobs: dict[str, Any]) -> None:
        """Add what ItemLogprobs has found, before the text of these tokens."""
        if not self._has_calls:
            self._unsent += logprobs["content"]
            self._offsets += logprobs["offsets"]

    def add(self, delta: Delta) -> Iterator[Event]:
        """Add a piece to the items, and yield its events."""
        if isinstance(delta, str):
            part = yield from self._part_of("message")
            part["text"] += delta
            entries = self._due(len(delta))
            part["logprobs"] += entries
            yield self._event("response.output_text.delta", content_index=0, delta=delta, logprobs=entries)
        elif isinstance(delta, Reasoning):
            part = yield from self._part_of("reasoning")
            part["text"] += delta.text
            yield self._event("response.reasoning_text.delta", content_index=0, delta=delta.text)
        elif isinstance(delta, CallStart):
            self._has_calls = True
            self._unsent.clear()
            self._offsets.clear()
            call = {"type": "function_call", "call_id": delta.call_id, "name": delta.name, "arguments": ""}
            yield from self._begin(call, "fc")
        else:
            self.items[-1]["arguments"] += delta.text
            yield self._event("response.function_call_arguments.delta", delta=delta.text)

    def end(self, status: str) -> Iterator[Event]:
        """Yield the events of the end. The last item gets ``status``; without items an empty message is added."""
        if not self.items:
            yield from self._part_of("message")
        yield from self._close(status)

    def _due(self, length: int) -> list[dict[str, Any]]:
        """Remove and return the log-probabilities of tokens that begin within the next characters of messages."""
        entries: list[dict[str, Any]] = []
        end = self._length + length
        while self._length < end:
            piece = min([end, *(start for start, _ in self._starts if start > self._length)])
            shift = max([0, *(place - start for start, place in self._starts if start <= self._length)])
            first, last = self._length + shift, piece + shift
            count = sum(offset < last for offset in self._offsets)
            before = sum(offset < first for offset in self._offsets[:count]) if shift else 0
            entries += self._unsent[before:count]
            del self._unsent[:count], self._offsets[:count]
            self._length = piece
        return entries

    @property
    def _open(self) -> str | None:
        """The type of the item in progress; None: no item is."""
        unfinished = self.items and self.items[-1]["status"] == "in_progress"
        return self.items[-1]["type"] if unfinished else None

    def _part_of(self, kind: str) -> Generator[Event, None, dict[str, Any]]:
        """Return the text part of the item in progress, which is made unless it is of this kind; yield its events."""
        if self._open != kind:
            part: dict[str, Any] = {"type": _TEXTS[kind], "text": ""}
            item: dict[str, Any] = {"type": kind, "content": []}
            if kind == "message":
                item["role"] = "assistant"
                part |= {"annotations": [], "logprobs": []}
            else:
                item["summary"] = []
            yield from self._begin(item, "msg" if kind == "message" else "rs")
            self.items[-1]["content"].append(part)
            yield self._event("response.content_part.added", content_index=0, part=_copied(part))
        (part,) = self.items[-1]["content"]
        return part

    def _begin(self, item: dict[str, Any], prefix: str) -> Iterator[Event]:
        yield from self._close("completed")
        new_id = item_id(prefix, self._name, len(self.items))
        self.items.append({"id": new_id, "status": "in_progress", **item})
        yield self._item_event("response.output_item.added")

    def _close(self, status: str) -> Iterator[Event]:
        kind = self._open
        if kind is None:
            return
        item = self.items[-1]
        if kind == "function_call" and parse_arguments(item["arguments"]) is None:
            status = "incomplete"  # the model ended its answer within the call
        item["status"] = status
        if kind in _TEXTS:
            (part,) = item["content"]
            content = {name: part[name] for name in ("text", "logprobs") if name in part}
            yield self._event(f"response.{_TEXTS[kind]}.done", content_index=0, **content)
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


def _copied(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part as it is now: its lists grow."""
    return {name: list(value) if isinstance(value, list) else value for name, value in part.items()}


class ItemLogprobs(ChatLogprobs):
    """Log-probabilities as in a chat, with the offsets of the tokens. A special token has an empty list of bytes."""

    @override
    def begins_within(self, length: int) -> bool:
        return False  # they are told with their text, never without any

    @override
    def _lists(self, taken: Sequence[AnswerToken], _length: int) -> dict[str, Any]:
        return {"content": LazyList(taken, self._content), "offsets": [token.offset for token in taken]}

    @override
    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        entry = super()._entry(token, logprob)
        return {**entry, "bytes": entry["bytes"] or []}
