"""Models of the responses of Anthropic's API, for /openapi.json; see answers.py."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from jaxgen.server.schema.answers import Latency


class TextBlock(BaseModel):
    type: Literal["text"]
    text: str


class ThinkingBlock(BaseModel):
    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(BaseModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class OutputTokensDetails(BaseModel):
    thinking_tokens: int


class MessageUsage(BaseModel):
    """``output_tokens_details`` only of models that reason."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails = Field(default=OutputTokensDetails(thinking_tokens=0))
    service_tier: str


class AppliedEdits(BaseModel):
    applied_edits: list[dict[str, Any]]


class Message(Latency):
    """``context_management`` only where edits were asked for."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: Literal["end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    stop_details: None
    usage: MessageUsage
    context_management: AppliedEdits = Field(default=AppliedEdits(applied_edits=[]))


class CountedTokens(BaseModel):
    input_tokens: int


class Model(BaseModel):
    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int
    max_tokens: int


class Models(BaseModel):
    data: list[Model]
    has_more: bool
    first_id: str | None
    last_id: str | None
