"""Items of /v1/responses: what a conversation there is made of. Keys that are not known are dropped."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Tag

from jaxgen.server.schema.base import ListOf, PartOfHistory, fields_of
from jaxgen.server.schema.parts import refuse_part


def _of_text(kind: Any) -> Any:
    return kind if kind in ("input_text", "output_text") else refuse_part(kind)


class TextItemPart(PartOfHistory):
    """Text that went in or came out."""

    type: Annotated[Literal["input_text", "output_text"], BeforeValidator(_of_text)]
    text: str


class RefusalPart(PartOfHistory):
    """A refusal of another model's, which is text of the assistant here."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


def _part_tag(value: Any) -> str:
    return ":refusal" if (fields_of(value) or {}).get("type") == "refusal" else ":text"


ItemPart = Annotated[
    Annotated[TextItemPart, Tag(":text")] | Annotated[RefusalPart, Tag(":refusal")], Discriminator(_part_tag)
]
ItemContent = Annotated[
    Annotated[str, Tag(":text")] | Annotated[ListOf[ItemPart], Tag(":parts")],
    Discriminator(lambda value: ":parts" if isinstance(value, list) else ":text"),
]


class MessageItem(PartOfHistory):
    """A message, of the caller's or of an earlier answer."""

    id: str | None = None
    type: Literal["message"] | None = None
    role: Literal["developer", "system", "user", "assistant"]
    content: ItemContent


class FunctionCallItem(PartOfHistory):
    """A call in an earlier answer. ``arguments``: what the model wrote, if it be no JSON."""

    id: str | None = None
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class FunctionCallOutputItem(PartOfHistory):
    """The result of a call."""

    id: str | None = None
    type: Literal["function_call_output"]
    call_id: str
    output: ItemContent


class ReasoningItem(PartOfHistory):
    """Another model's reasoning, which no model here is shown."""

    type: Literal["reasoning"]


class ItemReference(PartOfHistory):
    """An item of a response that is kept, by its id."""

    id: str
    type: Literal["item_reference"] | None = None


class OtherItem(PartOfHistory):
    """An item of an unknown type; only there to be refused by its type."""

    type: Literal["message", "function_call", "function_call_output", "reasoning", "item_reference"]


_KINDS = ("message", "function_call", "function_call_output", "reasoning", "item_reference")


def _item_tag(value: Any) -> str:
    fields = fields_of(value)
    if fields is None:
        return ":other"
    kind = fields.get("type")
    if kind is None:
        kind = "item_reference" if "id" in fields and "role" not in fields else "message"
    return f":{kind}" if kind in _KINDS else ":other"


StoredItem = Annotated[
    Annotated[MessageItem, Tag(":message")]
    | Annotated[FunctionCallItem, Tag(":function_call")]
    | Annotated[FunctionCallOutputItem, Tag(":function_call_output")],
    Discriminator(_item_tag),
]
"""An item that is part of a conversation itself."""

Item = Annotated[
    Annotated[MessageItem, Tag(":message")]
    | Annotated[FunctionCallItem, Tag(":function_call")]
    | Annotated[FunctionCallOutputItem, Tag(":function_call_output")]
    | Annotated[ReasoningItem, Tag(":reasoning")]
    | Annotated[ItemReference, Tag(":item_reference")]
    | Annotated[OtherItem, Tag(":other")],
    Discriminator(_item_tag),
]
Input = Annotated[
    Annotated[str, Tag(":text")] | Annotated[ListOf[Item], Tag(":items")],
    Discriminator(lambda value: ":items" if isinstance(value, list) else ":text"),
]


def text_of(content: ItemContent) -> str:
    """Return the text of a message or of an output, which parts join to."""
    return content if isinstance(content, str) else "".join(part.text for part in content)
