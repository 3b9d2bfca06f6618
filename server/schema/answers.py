"""Models of the responses, for /openapi.json. Responses are not made from these models: a test that calls every route
compares them with its responses."""

from typing import Any, Literal

from pydantic import BaseModel, Field, RootModel

Logprob = float
PromptLogprobs = list[dict[str, Any] | None]


class Object(BaseModel):
    """An object that describes itself."""


class Version(BaseModel):
    version: str


class Status(BaseModel):
    """The response of a probe that succeeds."""

    status: Literal["ok"]


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class Models(BaseModel):
    object: Literal["list"]
    data: list[Model]


class Tokens(BaseModel):
    """``token_strs`` only where it was asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] = Field(default=[])


class Text(BaseModel):
    prompt: str


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    reasoning_tokens: int


class Usage(BaseModel):
    """``completion_tokens_details`` only of models that reason."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails = Field(default=CompletionTokensDetails(reasoning_tokens=0))


class CompletionLogprobs(BaseModel):
    """Null is what a prompt's first token has."""

    tokens: list[str]
    token_logprobs: list[Logprob | None]
    top_logprobs: list[dict[str, Logprob] | None]
    text_offset: list[int]


class Latency(BaseModel):
    """Seconds of a request, by what they were spent on; only if asked for."""

    latency: dict[str, float] | None = None


class ChoiceExtras(Latency):
    """Extra fields of a choice, only if asked for."""

    token_ids: list[int] = Field(default=[])


class PromptExtras(BaseModel):
    """Extra fields of a prompt, only if asked for."""

    prompt_token_ids: list[int] = Field(default=[])
    prompt_logprobs: PromptLogprobs = Field(default=[])


class CompletionChoice(ChoiceExtras, PromptExtras):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage


class ChatToken(BaseModel):
    token: str
    logprob: Logprob
    bytes: list[int] | None


class ChatTokenWithOthers(ChatToken):
    top_logprobs: list[ChatToken]


class ChatLogprobs(BaseModel):
    content: list[ChatTokenWithOthers]
    refusal: None


class CalledFunction(BaseModel):
    """``arguments``: JSON, as text."""

    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(BaseModel):
    """``content`` null only where tools are called, or reasoning was cut off; ``tool_calls`` only where tools are
    called. What the model thought has two names, of which clients read one or the other."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str = Field(default="")
    reasoning: str = Field(default="")
    tool_calls: list[ToolCall] = Field(default=[])


class ChatChoice(ChoiceExtras):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(PromptExtras):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    service_tier: str = Field(default="default")
    """Only where the request named one."""


class Response(Latency):
    """A response of /v1/responses; it has more fields, which repeat the request's."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["completed", "incomplete"]
    error: None
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any]


class DeletedResponse(BaseModel):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputTokens(BaseModel):
    object: Literal["response.input_tokens"]
    input_tokens: int


class Embedding(Latency):
    """``embedding``: numbers, or the base64 of their 32-bit floats."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class Embeddings(BaseModel):
    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage


class File(BaseModel):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"]


class DeletedFile(BaseModel):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


class Batch(BaseModel):
    """A batch; further times are null until they have come."""

    id: str
    object: Literal["batch"]
    endpoint: str
    input_file_id: str
    output_file_id: str | None
    error_file_id: str | None
    completion_window: Literal["24h"]
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
    errors: dict[str, Any] | None
    metadata: dict[str, str] | None
    created_at: int
    request_counts: dict[str, int]


class DeletedBatch(BaseModel):
    id: str
    object: Literal["batch"]
    deleted: Literal[True]


class Page(BaseModel):
    """A page of a list; the next page comes ``after`` the ``last_id``."""

    object: Literal["list"]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputItems(Page):
    """Input items of a response, and of the responses that it continues."""

    data: list[dict[str, Any]]


class Files(Page):
    data: list[File]


class StepHistory(BaseModel):
    """A sample has a value of each field, null where there was nothing to measure."""

    interval_seconds: int
    fields: list[str]
    samples: list[list[float | None]]


class Batches(Page):
    data: list[Batch]


class PredictedSeconds(BaseModel):
    """``most_seconds``: as long as steps take that are as slow as one in 100 is."""

    expected_seconds: float
    most_seconds: float


class WouldBeRefused(BaseModel):
    """The 429 that the request would get."""

    code: Literal["would_be_late", "queue_full"]
    message: str
    retry_after_seconds: int


class PredictedLatency(BaseModel):
    """Predicted latency of a request that would come now; times are null if it would be refused."""

    object: Literal["latency"]
    model: str
    prompt_tokens: int
    cached_tokens: int | None
    first_token: PredictedSeconds | None
    inter_token: PredictedSeconds | None
    refused: WouldBeRefused | None


class Rendered(BaseModel):
    """A request to the engine: vLLM's GenerateRequest, and the ``text`` of its tokens."""

    request_id: str
    token_ids: list[int]
    text: str
    features: None
    sampling_params: dict[str, Any]
    model: str
    stream: bool
    stream_options: dict[str, Any] | None
    cache_salt: str | None
    priority: int
    kv_transfer_params: None


class RenderedPrompts(RootModel[list[Rendered]]):
    """Rendered prompts, in the order of the prompts."""
