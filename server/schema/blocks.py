"""Content blocks of /v1/messages: what a conversation there is made of. Keys that are not known are dropped."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from jaxgen.server.schema.base import ListOf, PartOfHistory, fields_of
from jaxgen.server.schema.chat import OtherPart


class TextBlock(PartOfHistory):
    """A text of the user's, of the assistant's or of the system's."""

    type: Literal["text"]
    text: str


class ThinkingBlock(PartOfHistory):
    """A model's thoughts before an earlier answer; the signature is not read."""

    type: Literal["thinking"]
    thinking: str


class SilentBlock(PartOfHistory):
    """A block that tells the model nothing: thoughts that only another server can read, and changes of the tools, all
    of which are shown anyway."""

    type: Literal["redacted_thinking", "tool_addition", "tool_removal"]


class ToolUseBlock(PartOfHistory):
    """A call in an earlier answer."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolReferenceBlock(PartOfHistory):
    """The name of a tool that a search has found, in a result."""

    type: Literal["tool_reference"]
    tool_name: str

    @property
    def text(self) -> str:
        return self.tool_name


def _tag_of(kinds: tuple[str, ...], value: Any) -> str:
    kind = (fields_of(value) or {}).get("type")
    return f":{kind}" if isinstance(kind, str) and kind in kinds else ":other"


def _content_tag(value: Any) -> str:
    return ":blocks" if isinstance(value, list) else ":text"


_SILENT = ("redacted_thinking", "tool_addition", "tool_removal")

ResultBlock = Annotated[
    Annotated[TextBlock, Tag(":text")]
    | Annotated[ToolReferenceBlock, Tag(":tool_reference")]
    | Annotated[OtherPart, Tag(":other")],
    Discriminator(lambda value: _tag_of(("text", "tool_reference"), value)),
]
ResultContent = Annotated[
    Annotated[str, Tag(":text")] | Annotated[ListOf[ResultBlock], Tag(":blocks")], Discriminator(_content_tag)
]


class ToolResultBlock(PartOfHistory):
    """The result of a call. ``is_error``: it failed."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: ResultContent | None = None
    is_error: bool | None = None


def _block_tag(value: Any) -> str:
    tag = _tag_of(("text", "thinking", "tool_use", "tool_result", *_SILENT), value)
    return ":silent" if tag[1:] in _SILENT else tag


Block = Annotated[
    Annotated[TextBlock, Tag(":text")]
    | Annotated[ThinkingBlock, Tag(":thinking")]
    | Annotated[SilentBlock, Tag(":silent")]
    | Annotated[ToolUseBlock, Tag(":tool_use")]
    | Annotated[ToolResultBlock, Tag(":tool_result")]
    | Annotated[OtherPart, Tag(":other")],
    Discriminator(_block_tag),
]
BlockContent = Annotated[
    Annotated[str, Tag(":text")] | Annotated[ListOf[Block], Tag(":blocks")], Discriminator(_content_tag)
]
TextContent = Annotated[
    Annotated[str, Tag(":text")] | Annotated[ListOf[TextBlock], Tag(":blocks")], Discriminator(_content_tag)
]


class InputMessage(PartOfHistory):
    """One turn of a conversation. One of the system's may come between others."""

    role: Literal["user", "assistant", "system"]
    content: BlockContent

    @property
    def blocks(self) -> list[Block]:
        """Its content as blocks."""
        return [TextBlock(type="text", text=self.content)] if isinstance(self.content, str) else self.content
