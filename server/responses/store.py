"""Keep responses in memory, each caller's apart, for requests that continue them or ask for them again."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import pydantic_core

OVERHEAD = 1024
"""Bytes that a kept response counts in addition to its texts."""
ITEM_OVERHEAD = 256
"""Bytes that each of its items counts so."""


type Items = tuple[tuple[str, bytes], ...]
"""Ids and JSON of items."""


@dataclass(eq=False, slots=True)
class StoredResponse:
    """One response, as JSON: the object, and the items of its own input and of its output. ``previous``: the one that
    it continues."""

    response: bytes
    input: Items
    output: Items
    previous: "StoredResponse | None"
    users: int = 0
    """The shelf that has it, and the kept responses that continue it."""
    expires: float = 0.0
    num_bytes: int = field(init=False)
    """Of the items of the whole conversation."""

    def __post_init__(self) -> None:
        self.num_bytes = sum(map(len, self._items())) + (0 if self.previous is None else self.previous.num_bytes)

    @property
    def size(self) -> int:
        """Bytes that it counts, without the responses that it continues."""
        items = self._items()
        return len(self.response) + OVERHEAD + sum(map(len, items)) + ITEM_OVERHEAD * len(items)

    def context(self) -> list[dict[str, Any]]:
        """Return the items that it answered: those of all earlier turns, then its own input."""
        earlier = [] if self.previous is None else self.previous.conversation()
        return [*earlier, *(pydantic_core.from_json(item) for _, item in self.input)]

    def conversation(self) -> list[dict[str, Any]]:
        """Return all items so far: the context, then the output."""
        turns = reversed(list(self._turns()))
        return [pydantic_core.from_json(item) for turn in turns for item in turn._items()]

    def ids(self) -> set[str]:
        """Return the ids of all items so far."""
        return {name for turn in self._turns() for name, _ in (*turn.input, *turn.output)}

    def _turns(self) -> Iterator["StoredResponse"]:
        """Yield this response, and the responses that it continues, the last one first."""
        turn: StoredResponse | None = self
        while turn is not None:  # no recursion: there may be thousands
            yield turn
            turn = turn.previous

    def _items(self) -> list[bytes]:
        return [item for _, item in (*self.input, *self.output)]


@dataclass(eq=False, slots=True)
class _Shelf:
    """The responses of one caller, the least recently used first."""

    responses: OrderedDict[str, StoredResponse] = field(default_factory=OrderedDict)
    items: dict[str, bytes] = field(default_factory=dict)
    size: int = 0
    """Bytes of its responses, and of the responses that they continue."""


class ResponseStore:
    """Keeps ``most`` responses of each caller, and ``most_bytes`` of all callers together, for ``lifetime_s`` seconds
    after they were last used.

    Beyond ``most``, a caller loses its least recently used responses; beyond ``most_bytes``, the caller with the most
    bytes does, so that none is crowded out by others. What a kept response continues stays, and counts, as long as it
    is kept. ``most`` 0: nothing is kept.
    """

    def __init__(self, most: int, most_bytes: int, lifetime_s: float, clock: Callable[[], float] = monotonic) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._shelves: dict[str, _Shelf] = {}

    @property
    def keeps_any(self) -> bool:
        return self._most > 0

    @property
    def size(self) -> int:
        """Bytes of all that is kept."""
        return sum(shelf.size for shelf in self._shelves.values())

    def keep(
        self, caller: str, response: dict[str, Any], items: Sequence[dict[str, Any]], previous: StoredResponse | None
    ) -> None:
        """Keep a response, and the items of its input. All items have ids. It replaces one of the same id, as of a
        stream that went on from an earlier event."""
        output = map(_without_logprobs, response["output"])
        stored = StoredResponse(pydantic_core.to_json(response), _items(items), _items(output), previous)
        shelf = self._shelves.setdefault(caller, _Shelf())
        _hold(shelf, stored)  # first: it continues the same one, which stays
        if response["id"] in shelf.responses:
            self._drop(shelf, response["id"])
        shelf.responses[response["id"]] = stored
        shelf.items.update((*stored.input, *stored.output))
        stored.expires = self._clock() + self._lifetime_s
        self._make_room(shelf)

    def get(self, caller: str, response_id: str) -> StoredResponse | None:
        """Return a response of the caller's, which counts as a use of it; None: there is none of this id."""
        self._expire()
        shelf = self._shelves.get(caller)
        return None if shelf is None else self._used(shelf, response_id)

    def item(self, caller: str, item_id: str) -> bytes | None:
        """Return the JSON of an item of a response of the caller's, or of its input; None: there is none of this id."""
        self._expire()
        shelf = self._shelves.get(caller)
        return None if shelf is None else shelf.items.get(item_id)

    def delete(self, caller: str, response_id: str) -> bool:
        """Delete a response of the caller's; return whether there was one of this id."""
        self._expire()
        shelf = self._shelves.get(caller)
        if shelf is None or response_id not in shelf.responses:
            return False
        self._drop(shelf, response_id)
        return True

    def _used(self, shelf: _Shelf, response_id: str) -> StoredResponse | None:
        response = shelf.responses.get(response_id)
        if response is not None:
            shelf.responses.move_to_end(response_id)
            response.expires = self._clock() + self._lifetime_s
        return response

    def _expire(self) -> None:
        now = self._clock()
        for shelf in list(self._shelves.values()):
            while (
                shelf.responses and (oldest := next(iter(shelf.responses))) and shelf.responses[oldest].expires <= now
            ):
                self._drop(shelf, oldest)
        self._shelves = {caller: shelf for caller, shelf in self._shelves.items() if shelf.responses}

    def _make_room(self, shelf: _Shelf) -> None:
        self._expire()
        while len(shelf.responses) > self._most:
            self._drop(shelf, next(iter(shelf.responses)))
        size = self.size
        while size > self._most_bytes:
            largest = max(self._shelves.values(), key=lambda other: other.size)
            size -= largest.size
            self._drop(largest, next(iter(largest.responses)))
            size += largest.size

    def _drop(self, shelf: _Shelf, response_id: str) -> None:
        dropped = shelf.responses.pop(response_id)
        for item_id, item in (*dropped.input, *dropped.output):
            if shelf.items.get(item_id) is item:  # else a later response has an item of this id
                del shelf.items[item_id]
        _let_go(shelf, dropped)


def _items(items: Iterable[dict[str, Any]]) -> Items:
    return tuple((item["id"], pydantic_core.to_json(item)) for item in items)


def _without_logprobs(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item of an output as an item of a conversation, in which they say nothing, and may be long."""
    if "content" not in item:
        return item
    return {**item, "content": [{**part, "logprobs": []} if "logprobs" in part else part for part in item["content"]]}


def _hold(shelf: _Shelf, response: StoredResponse | None) -> None:
    """Count a use of a response; its first use counts for the responses that it continues too."""
    while response is not None:
        response.users += 1
        if response.users > 1:
            return
        shelf.size += response.size
        response = response.previous


def _let_go(shelf: _Shelf, response: StoredResponse | None) -> None:
    """Take a use of a response back; its last use is taken back from the responses that it continues too."""
    while response is not None:
        response.users -= 1
        if response.users > 0:
            return
        shelf.size -= response.size
        response = response.previous
