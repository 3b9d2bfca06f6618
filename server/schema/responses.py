"""The body of a request to /v1/responses. Fields that this server cannot honour are refused by name."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from jaxgen.server.errors import bad_request
from jaxgen.server.schema.base import Body, CallerFields, JsonSchema, ListOf
from jaxgen.server.schema.tools import FunctionChoice, FunctionDefinition, ToolMode, choice_tag

_KEPT = ("previous_response_id", "conversation", "store", "background", "prompt")
_KEEPS_NOTHING = "this server keeps nothing between requests; send the whole conversation as input."
_TEXT_ALONE = "this server answers with plain text and calls of functions, and has no such option or value."

Status = Literal["in_progress", "completed", "incomplete"]


class TextItemPart(Body):
    """Text that went in or came out; other parts are refused. What came out may have empty lists with it."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


ItemContent = Annotated[
    Annotated[str, Tag(":text")] | Annotated[ListOf[TextItemPart], Tag(":parts")],
    Discriminator(lambda value: ":parts" if isinstance(value, list) else ":text"),
]


class KnownItem(Body):
    """Of a kind that this server knows; it may have come out with an id and a status."""

    id: str | None = None
    status: Status | None = None


class MessageItem(KnownItem):
    """A message, of the caller's or of an earlier answer."""

    type: Literal["message"] = "message"
    role: Literal["developer", "system", "user", "assistant"]
    content: ItemContent


class FunctionCallItem(KnownItem):
    """A call in an earlier answer. ``arguments``: JSON text of an object."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class FunctionCallOutputItem(KnownItem):
    """What came of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: ItemContent


class OtherItem(Body):
    """Of a kind that this server does not know; only there to be refused by its type."""

    type: Literal["message", "function_call", "function_call_output"]


def _item_tag(value: Any) -> str:
    kind = value.get("type", "message") if isinstance(value, dict) else None
    return f":{kind}" if kind in ("message", "function_call", "function_call_output") else ":other"


Item = Annotated[
    Annotated[MessageItem, Tag(":message")]
    | Annotated[FunctionCallItem, Tag(":function_call")]
    | Annotated[FunctionCallOutputItem, Tag(":function_call_output")]
    | Annotated[OtherItem, Tag(":other")],
    Discriminator(_item_tag),
]
Input = Annotated[
    Annotated[str, Tag(":text")] | Annotated[ListOf[Item], Tag(":items")],
    Discriminator(lambda value: ":items" if isinstance(value, list) else ":text"),
]


class OfFunction(Body):
    """Other types are refused, and before their other fields."""

    type: Literal["function"]


class ResponseTool(FunctionDefinition, OfFunction):
    """A function of the caller's."""


class NamedFunction(FunctionChoice, OfFunction):
    """This function must be called."""


ResponseToolChoice = Annotated[
    Annotated[ToolMode, Tag(":mode")] | Annotated[NamedFunction, Tag(":named")], Discriminator(choice_tag)
]


class TextFormat(JsonSchema):
    """As ``response_format`` of a chat, but flat."""

    type: Literal["text", "json_object", "json_schema"]


class TextConfig(Body):
    """How the text is to be."""

    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(Body):
    """None: models think in their text, if at all."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponseStreamOptions(Body):
    """``include_obfuscation``: padding against listeners who measure, which is not done."""

    include_obfuscation: bool | None = None


class ResponsesRequest(CallerFields):
    """The body of /v1/responses. ``user``, ``safety_identifier`` and ``prompt_cache_key`` only name who asks: prefixes
    are cached anyway."""

    background: bool | None = None
    conversation: Any = None
    include: ListOf[str] | None = None
    input: Input | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    prompt: Any = None
    prompt_cache_key: str | None = None
    reasoning: Reasoning | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    temperature: float | None = None
    text: TextConfig | None = None
    tool_choice: ResponseToolChoice | None = None
    tools: ListOf[ResponseTool] | None = None
    top_logprobs: int | None = None
    top_p: float | None = None
    truncation: str | None = None

    def refuse_what_is_missing(self) -> None:
        """Raise ApiError 400 for a value that this server does not support."""
        text = self.text or TextConfig()
        options = self.stream_options or ResponseStreamOptions()
        asked = {
            "previous_response_id": self.previous_response_id is not None,
            "conversation": self.conversation is not None,
            "store": self.store is True,
            "background": self.background is True,
            "include": bool(self.include),
            "max_tool_calls": self.max_tool_calls is not None,
            "prompt": self.prompt is not None,
            "reasoning": self.reasoning is not None and self.reasoning not in (Reasoning(), Reasoning(effort="none")),
            "stream_options": options.include_obfuscation is True,
            "text.verbosity": text.verbosity is not None,
            "top_logprobs": self.top_logprobs not in (None, 0),
            "truncation": self.truncation not in (None, "disabled"),
        }
        for name, found in asked.items():
            if found:
                raise bad_request(f"{name}: {_KEEPS_NOTHING if name in _KEPT else _TEXT_ALONE}", name)
