"""Collect the items of a request to /v1/responses: its own, and those of the response that it continues."""

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from jaxgen.server.errors import bad_request
from jaxgen.server.limits import Limits
from jaxgen.server.responses.output import item_id
from jaxgen.server.responses.store import ResponseStore, StoredResponse
from jaxgen.server.schema.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    ItemContent,
    ItemReference,
    MessageItem,
    OtherItem,
    ReasoningItem,
    RefusalPart,
    StoredItem,
)
from jaxgen.server.schema.responses import ConversationFields

logger = logging.getLogger(__name__)

_ITEM: TypeAdapter[Any] = TypeAdapter(Item)
_ITEMS: TypeAdapter[list[StoredItem]] = TypeAdapter(list[StoredItem])


@dataclass(frozen=True, slots=True)
class RequestItems:
    """The items of a request: of what it continues, and its own. ``fields``: where the own ones are in the body."""

    previous: StoredResponse | None
    earlier: list[StoredItem]
    own: list[StoredItem]
    fields: list[str]

    def as_json(self, name: str) -> list[dict[str, Any]]:
        """Return the own items as they are kept. ``name``: of the response, from which their ids are made.

        An item has its own id only if none before it in the conversation has: lists are paged by ids.
        """
        taken = set() if self.previous is None else self.previous.ids()
        items = []
        for i, item in enumerate(self.own):
            items.append(_item_json(item, f"{name}-input", i, taken))
            taken.add(items[-1]["id"])
        return items


def read_items(body: ConversationFields, store: ResponseStore, caller: str, limits: Limits) -> RequestItems:
    """Return the items of a request. Raises ApiError 400 for what is not kept, and for more items, or bytes of those
    that are kept, than a body may have."""
    previous, earlier = _previous(body.previous_response_id, store, caller, limits.max_body_bytes)
    if not body.input:
        raise bad_request("input is missing: send a text or a list of items.", "input")
    own: list[StoredItem] = []
    fields: list[str] = []
    room = limits.max_body_bytes - (0 if previous is None else previous.num_bytes)
    for given, field in _given(body.input):
        item: StoredItem | ReasoningItem
        if isinstance(given, ItemReference):
            text = _referred(given, f"{field}.id", store, caller)
            room -= len(text)  # of many references to one long item too
            _check_room(room, limits.max_body_bytes, f"{field}.id")
            item = _ITEM.validate_json(text)
        else:
            item = given
        if isinstance(item, ReasoningItem):
            logger.debug("dropped an item of reasoning")
            continue
        own.append(item)
        fields.append(field)
    if len(earlier) + len(own) > limits.max_messages:
        raise bad_request(
            f"input has {len(own)} items and continues {len(earlier)}; this server takes {limits.max_messages} "
            "together.",
            "input",
        )
    return RequestItems(previous, earlier, own, fields)


def _given(given: str | list[Item]) -> Iterator[tuple[StoredItem | ReasoningItem | ItemReference, str]]:
    """Yield the items of the input, each with its place in the body."""
    if isinstance(given, str):
        yield MessageItem(role="user", content=given), "input"
        return
    for i, item in enumerate(given):
        if not isinstance(item, OtherItem):  # which none is: its type is refused
            yield item, f"input.{i}"


def _previous(
    name: str | None, store: ResponseStore, caller: str, most_bytes: int
) -> tuple[StoredResponse | None, list[StoredItem]]:
    if name is None:
        return None, []
    previous = store.get(caller, name)
    if previous is None:
        raise bad_request(
            f"Previous response with id {name[:100]!r} not found: it was never kept, or no longer is.",
            "previous_response_id",
            "previous_response_not_found",
        )
    _check_room(most_bytes - previous.num_bytes, most_bytes, "previous_response_id")
    return previous, _ITEMS.validate_python([item for item in previous.conversation() if item["type"] != "reasoning"])


def _check_room(room: int, most_bytes: int, field: str) -> None:
    if room < 0:
        raise bad_request(
            f"{field}: the kept items have more than {most_bytes} bytes together, the limit of a body. Begin a new "
            "conversation.",
            field,
        )


def _referred(item: ItemReference, field: str, store: ResponseStore, caller: str) -> bytes:
    """Return the JSON of the item that is referred to. Raises ApiError 400."""
    text = store.item(caller, item.id)
    if text is None:
        raise bad_request(
            f"{field}: item with id {item.id[:100]!r} not found: items are kept with their responses, unless store "
            "was false. Send the item itself.",
            field,
        )
    return text


def _item_json(item: StoredItem, name: str, place: int, taken: Collection[str]) -> dict[str, Any]:
    """Return an item as it is kept, with an id that is not ``taken``. Parts of messages are of the type that goes with
    the role."""
    match item:
        case MessageItem():
            content = _parts_json(item.content, "output_text" if item.role == "assistant" else "input_text")
            fields: dict[str, Any] = {"type": "message", "role": item.role, "content": content}
            prefix = "msg"
        case FunctionCallItem():
            fields = {"type": item.type, "call_id": item.call_id, "name": item.name, "arguments": item.arguments}
            prefix = "fc"
        case FunctionCallOutputItem():
            output = item.output if isinstance(item.output, str) else _parts_json(item.output, "input_text")
            fields = {"type": item.type, "call_id": item.call_id, "output": output}
            prefix = "fco"
    own = item.id if item.id and item.id not in taken else item_id(prefix, name, place)
    return {"id": own, "status": "completed", **fields}


def _parts_json(content: ItemContent, kind: str) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [_part_json(content, kind)]
    return [
        {"type": "refusal", "refusal": part.refusal}
        if isinstance(part, RefusalPart) and kind == "output_text"
        else _part_json(part.text, kind)
        for part in content
    ]


def _part_json(text: str, kind: str) -> dict[str, Any]:
    return {"type": kind, "text": text} | ({"annotations": []} if kind == "output_text" else {})
