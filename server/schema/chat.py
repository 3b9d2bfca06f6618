"""The body of a chat completions request. Fields that this server cannot honour are refused by name."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from jaxgen.server.errors import bad_request
from jaxgen.server.schema.base import Body, ListOf, SamplingFields
from jaxgen.server.schema.tools import FunctionTool, ToolCall, ToolChoice


class TextPart(Body):
    """A part of a message's content; others than text are refused."""

    type: Literal["text"]
    text: str


Content = Annotated[
    Annotated[str, Tag(":text")] | Annotated[ListOf[TextPart], Tag(":texts")],
    Discriminator(lambda value: ":texts" if isinstance(value, list) else ":text"),
]


class Message(Body):
    """One message of the conversation. ``name`` is given to the template, which may show it.

    The last fields are in answers of OpenAI's and ours; they come back with them, and say nothing.
    """

    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: ListOf[ToolCall] | None = None
    tool_call_id: str | None = None

    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None
    refusal: None = None

    @property
    def text(self) -> str:
        """Its content, which parts join to."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "".join(part.text for part in self.content)


class Conversation(Body):
    """Messages, and what else the template is told; after OpenAI's ``messages`` the fields of vLLM, then OpenAI's
    ``tools``."""

    messages: ListOf[Message] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    tools: ListOf[FunctionTool] | None = None


class ChatRequest(SamplingFields, Conversation):
    """The body of /v1/chat/completions. ``user``, ``safety_identifier`` and ``prompt_cache_key`` only name who asks:
    prefixes are cached anyway."""

    logprobs: bool | None = None
    max_completion_tokens: int | None = None
    metadata: dict[str, str] | None = None
    modalities: ListOf[str] | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    store: bool | None = None
    tool_choice: ToolChoice | None = None
    top_logprobs: int | None = None

    def refuse_what_is_missing(self) -> None:
        """Raise ApiError 400 for a value that this server does not support."""
        asked = {
            "modalities": self.modalities not in (None, ["text"]),
            "store": self.store is True,
        }
        for name, found in asked.items():
            if found:
                raise bad_request(f"{name}: this server answers in plain text and stores nothing.", name)
