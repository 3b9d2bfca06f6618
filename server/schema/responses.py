"""Bodies of requests to /v1/responses and /v1/responses/input_tokens. Fields that this server cannot honour are refused
by name."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from jaxgen.server.errors import bad_request
from jaxgen.server.schema.base import (
    Body,
    JsonSchema,
    ListOf,
    OpenAIFields,
    PartOfHistory,
    fields_of,
)
from jaxgen.server.schema.integers import Integer
from jaxgen.server.schema.items import Input
from jaxgen.server.schema.ranges import Alternatives
from jaxgen.server.schema.tools import FunctionChoice, FunctionDefinition, ToolMode

LOGPROBS = "message.output_text.logprobs"
_NO_BACKGROUND = "answers are computed while their callers wait, and nothing runs in the background."
_NO_OPTION = "this server answers with plain text and calls of functions, and has no such option or value."


class ResponseTool(FunctionDefinition, PartOfHistory):
    """A function of the caller's."""

    type: Literal["function"]


class OtherTool(PartOfHistory):
    """A tool that only other servers and models have; it is dropped."""

    type: str


def _tool_tag(value: Any) -> str:
    kind = (fields_of(value) or {}).get("type")
    return ":other" if isinstance(kind, str) and kind != "function" else ":function"


AnyTool = Annotated[
    Annotated[ResponseTool, Tag(":function")] | Annotated[OtherTool, Tag(":other")], Discriminator(_tool_tag)
]


class NamedFunction(FunctionChoice, PartOfHistory):
    """This function must be called."""

    type: Literal["function"]


class AllowedTool(PartOfHistory):
    """One of the tools that may be called; ``name`` of a function."""

    type: str
    name: str | None = None


class AllowedTools(PartOfHistory):
    """The only tools that may be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: ListOf[AllowedTool]


class OtherChoice(PartOfHistory):
    """The choice of a tool that this server drops; only there to be refused by its type."""

    type: str


def _choice_tag(value: Any) -> str:
    fields = fields_of(value)
    if fields is None:
        return ":mode"
    known = {"function": ":named", "allowed_tools": ":allowed"}
    kind = fields.get("type")
    return known.get(kind, ":other") if isinstance(kind, str) else ":named"


ResponseToolChoice = Annotated[
    Annotated[ToolMode, Tag(":mode")]
    | Annotated[NamedFunction, Tag(":named")]
    | Annotated[AllowedTools, Tag(":allowed")]
    | Annotated[OtherChoice, Tag(":other")],
    Discriminator(_choice_tag),
]


class TextFormat(JsonSchema):
    """The ``response_format`` of a chat, but flat."""

    type: Literal["text", "json_object", "json_schema"]


class TextConfig(Body):
    """The format of the text."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(Body):
    """Options of a model that reasons. Without reasoning there is no summary."""

    context: Literal["auto", "current_turn", "all_turns"] | None = None
    effort: str | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    mode: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseStreamOptions(Body):
    """``include_obfuscation``: padding against listeners who measure, which is not done."""

    include_obfuscation: bool | None = None


Includable = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
"""Only log-probabilities are there to be included; answers have none of the other things."""


class ConversationFields(Body):
    """Fields of the prompt."""

    chat_template_kwargs: dict[str, Any] | None = None
    conversation: Any = None
    input: Input | None = None
    instructions: str | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    tool_choice: ResponseToolChoice | None = None
    tools: ListOf[AnyTool] | None = None
    truncation: Literal["auto", "disabled"] | None = None

    @property
    def functions(self) -> list[ResponseTool]:
        """The tools that can be called here."""
        return [tool for tool in self.tools or () if isinstance(tool, ResponseTool)]

    def refuse_what_is_missing(self) -> None:
        """Raise ApiError 400 for a value that this server does not support."""
        for name, (asked, reason) in self._asked().items():
            if asked:
                raise bad_request(f"{name}: {reason}", name)
        if isinstance(self.tool_choice, OtherChoice):
            kind = self.tool_choice.type[:100]
            raise bad_request(
                f"tool_choice.type: this server has no tools of the type {kind!r}; name a function, or send a mode.",
                "tool_choice.type",
            )

    def _asked(self) -> dict[str, tuple[bool, str]]:
        """Return, by field, whether what is missing is asked for, and what to say then."""
        text, reasoning = self.text or TextConfig(), self.reasoning or Reasoning()
        return {
            "conversation": (
                self.conversation is not None,
                "this server keeps responses, and no conversations: send previous_response_id, or all items as input.",
            ),
            "reasoning.mode": (reasoning.mode not in (None, "standard"), _NO_OPTION),
            "text.verbosity": (text.verbosity not in (None, "medium"), _NO_OPTION),
            "truncation": (
                self.truncation == "auto",
                "this server leaves out no part of a conversation: send 'disabled', and fewer items.",
            ),
        }


class InputTokensRequest(ConversationFields):
    """The body of /v1/responses/input_tokens."""

    model: str | None = None
    personality: str | None = None

    def _asked(self) -> dict[str, tuple[bool, str]]:
        return {**super()._asked(), "personality": (self.personality is not None, _NO_OPTION)}


class ResponsesRequest(OpenAIFields, ConversationFields):
    """The body of /v1/responses: OpenAI's fields, then fields that others add.

    ``user``, ``safety_identifier`` and ``prompt_cache_key`` only name who asks, ``client_metadata`` with what. Every
    prefix is cached, as long as there is room, so ``prompt_cache_options`` and ``prompt_cache_retention`` change
    nothing. ``max_tool_calls`` limits tools that the server itself calls, and it calls none.
    """

    access_programs: Any = None
    background: bool | None = None
    background_options: Any = None
    client_metadata: dict[str, Any] | None = None
    context_management: Any = None
    image: Any = None
    include: ListOf[Includable] | None = None
    max_output_tokens: Integer | None = None
    max_tool_calls: Integer | None = None
    metadata: dict[str, str] | None = None
    moderation: Any = None
    prompt: Any = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    store: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    top_logprobs: Alternatives = None

    @property
    def wants_logprobs(self) -> bool:
        """Whether the answer has log-probabilities. Who asks for alternatives of tokens asks for them too."""
        return LOGPROBS in (self.include or ()) or bool(self.top_logprobs)

    def _asked(self) -> dict[str, tuple[bool, str]]:
        options = self.stream_options or ResponseStreamOptions()
        return {
            **super()._asked(),
            "access_programs": (self.access_programs is not None, _NO_OPTION),
            "background": (self.background is True, _NO_BACKGROUND),
            "background_options": (self.background_options is not None, _NO_BACKGROUND),
            "context_management": (
                self.context_management is not None,
                "this server leaves out no part of a conversation.",
            ),
            "image": (self.image is not None, _NO_OPTION),
            "moderation": (self.moderation is not None, _NO_OPTION),
            "prompt": (
                self.prompt is not None,
                "this server keeps no prompts: send their text as instructions and input.",
            ),
            "stream_options": (options.include_obfuscation is True, "this server does not pad events."),
        }
