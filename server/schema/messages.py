"""Bodies of requests to /v1/messages and /v1/messages/count_tokens, of Anthropic's API. Fields that this server cannot
honour are refused by name."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from jaxgen.server.schema.base import Body, CallerFields, ListOf, PartOfHistory, Unsupported, fields_of
from jaxgen.server.schema.blocks import InputMessage, TextContent
from jaxgen.server.schema.integers import Integer
from jaxgen.server.schema.ranges import MaxChatTokens
from jaxgen.server.schema.responses import OtherTool
from jaxgen.server.schema.tools import FunctionName


class CustomTool(PartOfHistory):
    """A function of the caller's."""

    type: Literal["custom"] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: dict[str, Any]


def _tool_tag(value: Any) -> str:
    kind = (fields_of(value) or {}).get("type")
    return ":other" if isinstance(kind, str) and kind != "custom" else ":custom"


MessagesTool = Annotated[
    Annotated[CustomTool, Tag(":custom")] | Annotated[OtherTool, Tag(":other")], Discriminator(_tool_tag)
]


class MessagesToolChoice(PartOfHistory):
    """Which tools may be called, or must be: ``any`` one of them, or the ``tool`` of the ``name``."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(PartOfHistory):
    """Whether the model is to think, and whether the answer shows it. ``budget_tokens``: only ``max_tokens`` bounds how
    much it thinks."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Integer | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Body):
    """The format of an answer's text."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(PartOfHistory):
    """``effort``: given to chat templates, some of which have levels of it."""

    effort: str | None = None
    format: OutputFormat | None = None


class Edit(PartOfHistory):
    """A change that Anthropic's server may make to a conversation before the model reads it."""

    type: str


class ContextManagement(PartOfHistory):
    """This server makes no such change, and answers so."""

    edits: ListOf[Edit] | None = None


class Metadata(PartOfHistory):
    """Metadata that only names the caller's end user."""

    user_id: str | None = None


NO_THREADS = "thread_unsupported_request"
"""Anthropic's code, by which its SDKs send all messages instead."""
_NONE_CALLED = "this server calls no tools itself: send those of your own as tools"


class PromptFields(Body):
    """Fields of the prompt: Anthropic's fields, then one that others add. ``cache_control`` changes nothing:
    every prefix is cached, as long as there is room."""

    unsupported: ClassVar[dict[str, Unsupported]] = {
        "compaction": Unsupported("this server leaves out no part of a conversation"),
        "container": Unsupported("this server runs no code"),
        "fallbacks": Unsupported("this server has one model"),
        "inference_geo": Unsupported("this server computes where it is"),
        "mcp_servers": Unsupported(_NONE_CALLED, ([],)),
        "prefill": Unsupported("end the messages with one of the assistant's, which the answer then continues"),
        "speed": Unsupported("this server has one speed: send 'standard', or leave it out", ("standard",)),
        "thread": Unsupported("this server keeps no conversations: send all messages", code=NO_THREADS),
    }

    cache_control: dict[str, Any] | None = None
    context_management: ContextManagement | None = None
    messages: ListOf[InputMessage] | None = None
    output_config: OutputConfig | None = None
    system: TextContent | None = None
    thinking: Thinking | None = None
    tool_choice: MessagesToolChoice | None = None
    tools: ListOf[MessagesTool] | None = None

    chat_template_kwargs: dict[str, Any] | None = None


class CountTokensRequest(PromptFields):
    """The body of /v1/messages/count_tokens."""

    model: str | None = None


class MessagesRequest(CallerFields, PromptFields):
    """The body of /v1/messages: Anthropic's fields, then fields that others add."""

    max_tokens: MaxChatTokens = None
    metadata: Metadata | None = None
    service_tier: str | None = None
    stop_sequences: ListOf[str] | None = None
