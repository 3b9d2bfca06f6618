"""The body of a chat completions request. What this server cannot honour is refused by name."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from server.errors import bad_request
from server.schema import Body, SamplingFields


class TextPart(Body):
    """A part of a message's content; others than text are refused."""

    type: Literal["text"]
    text: str


Content = Annotated[
    Annotated[str, Tag(":text")] | Annotated[list[TextPart], Tag(":texts")],
    Discriminator(lambda value: ":texts" if isinstance(value, list) else ":text"),
]


class Message(Body):
    """One message of the conversation. ``name`` is given to the template, which may show it."""

    role: Literal["developer", "system", "user", "assistant"]
    content: Content
    name: str | None = None

    @property
    def length(self) -> int:
        """Characters of its content."""
        return len(self.content) if isinstance(self.content, str) else sum(len(part.text) for part in self.content)

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it: a text, which parts join to."""
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        message = {"role": self.role, "content": content}
        return message if self.name is None else {**message, "name": self.name}


class Conversation(Body):
    """Messages, and what else the template is told; after OpenAI's ``messages`` the fields of vLLM."""

    messages: list[Message] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None


class ChatRequest(SamplingFields, Conversation):
    """The body of /v1/chat/completions."""

    logprobs: bool | None = None
    max_completion_tokens: int | None = None
    metadata: dict[str, str] | None = None
    modalities: list[str] | None = None
    parallel_tool_calls: bool | None = None
    service_tier: str | None = None
    store: bool | None = None
    tool_choice: Any = None
    tools: list[Any] | None = None
    top_logprobs: int | None = None

    def refuse_what_is_missing(self) -> None:
        """Raises ApiError 400 for a value that asks for something this server does not do."""
        asked = {
            "modalities": self.modalities not in (None, ["text"]),
            "service_tier": self.service_tier not in (None, "auto", "default"),
            "store": self.store is True,
            "tool_choice": self.tool_choice not in (None, "none", "auto"),
            "tools": bool(self.tools),
        }
        for name, found in asked.items():
            if found:
                raise bad_request(
                    f"{name}: this server answers in plain text, without tools, and stores nothing.", name
                )
