"""The body of a chat completions request. Fields that this server cannot honour are refused by name."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from jaxgen.server.schema.base import Body, ListOf, PartOfHistory, SamplingFields, Unsupported
from jaxgen.server.schema.parts import refuse_part
from jaxgen.server.schema.ranges import Alternatives, MaxChatTokens
from jaxgen.server.schema.tools import CalledFunction, FunctionTool, ToolCall, ToolChoice


class TextPart(PartOfHistory):
    """A text in a message's content; two of its types are those of /v1/responses."""

    type: Literal["text", "input_text", "output_text"] = "text"
    text: str


class RefusalPart(PartOfHistory):
    """A model's refusal instead of an answer."""

    type: Literal["refusal"]
    text: str = Field(alias="refusal")


class ThoughtPart(PartOfHistory):
    """A model's thoughts before an earlier answer. They are left out, as templates leave them out."""

    type: Literal["thinking", "redacted_thinking", "reasoning"]

    @property
    def text(self) -> str:
        return ""


class OtherPart(Body):
    """A part other than text; only there to be refused by its type."""

    type: Annotated[Literal["text"], BeforeValidator(refuse_part)]
    text: str


_PARTS = {
    "text": ":text",
    "input_text": ":text",
    "output_text": ":text",
    "refusal": ":refusal",
    "thinking": ":thought",
    "redacted_thinking": ":thought",
    "reasoning": ":thought",
}


def _part_tag(value: Any) -> str:
    kind = value.get("type", "text") if isinstance(value, dict) else getattr(value, "type", "text")
    return _PARTS.get(kind, ":other") if isinstance(kind, str) else ":other"


Part = Annotated[
    Annotated[TextPart, Tag(":text")]
    | Annotated[RefusalPart, Tag(":refusal")]
    | Annotated[ThoughtPart, Tag(":thought")]
    | Annotated[OtherPart, Tag(":other")],
    Discriminator(_part_tag),
]
Content = Annotated[
    Annotated[str, Tag(":text")] | Annotated[ListOf[Part], Tag(":parts")],
    Discriminator(lambda value: ":parts" if isinstance(value, list) else ":text"),
]


class PastAudio(PartOfHistory):
    """An earlier answer in sound, of which its transcript is read."""

    transcript: str | None = None


class Message(PartOfHistory):
    """One message of the conversation. ``name`` is given to the template, which may show it.

    The role ``function`` and ``function_call`` are the old names of ``tool`` and of one of the ``tool_calls``.
    ``reasoning_content`` and ``reasoning`` are names of one thing, which other servers give other forms.
    """

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: Content | None = None
    name: str | None = None
    tool_calls: ListOf[ToolCall] | None = None
    tool_call_id: str | None = None

    audio: PastAudio | None = None
    function_call: CalledFunction | None = None
    reasoning: Any = None
    reasoning_content: Any = None
    refusal: str | None = None

    @property
    def thought(self) -> str:
        """The assistant's thoughts before it answered, if they are a text."""
        given = (self.reasoning_content, self.reasoning)
        return next((text for text in given if isinstance(text, str)), "") if self.role == "assistant" else ""

    @property
    def text(self) -> str:
        """Its content, which parts join to; without any, what was said instead: a refusal, or words in sound."""
        content = self.content
        text = content if isinstance(content, str) else "".join(part.text for part in content or ())
        return text or self.refusal or (self.audio and self.audio.transcript) or ""

    @property
    def calls(self) -> list[ToolCall]:
        """Its tool calls."""
        if not self.tool_calls and self.function_call is not None:
            return [ToolCall(function=self.function_call)]
        return self.tool_calls or []


class Conversation(Body):
    """Messages, and what else the template is told; after OpenAI's ``messages`` the fields of vLLM, then OpenAI's
    ``tools``."""

    messages: ListOf[Message] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    reasoning_effort: str | None = None
    tools: ListOf[FunctionTool] | None = None


class ChatRequest(SamplingFields, Conversation):
    """The body of /v1/chat/completions.

    ``include_reasoning`` (true) is vLLM's: whether the answer has what the model thought before it.

    ``user``, ``safety_identifier`` and ``prompt_cache_key`` only name who asks: prefixes are cached anyway, so
    ``prompt_cache_options`` and ``prompt_cache_retention`` change nothing; nor does ``prediction``, a hint for speed.
    """

    unsupported: ClassVar[dict[str, Unsupported]] = {
        "audio": Unsupported("this server answers in text, not in sound"),
        "function_call": Unsupported("it is the old name of tool_choice: send tools and tool_choice", ("none", "auto")),
        "functions": Unsupported(
            'it is the old name of tools: send each as {"type": "function", "function": ...} in tools', ([],)
        ),
        "modalities": Unsupported("this server answers in text: send ['text'], or leave it out", (["text"],)),
        "moderation": Unsupported("this server judges no texts"),
        "store": Unsupported("this server stores no chat completions: send false, or leave it out", (False,)),
        "verbosity": Unsupported(
            "this server does not set how much a model says: send 'medium', or leave it out, and ask for it in a "
            "message",
            ("medium",),
        ),
        "web_search_options": Unsupported("this server does not search the web"),
    }

    include_reasoning: bool | None = None
    logprobs: bool | None = None
    max_completion_tokens: MaxChatTokens = None
    max_tokens: MaxChatTokens = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    prediction: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    tool_choice: ToolChoice | None = None
    top_logprobs: Alternatives = None
