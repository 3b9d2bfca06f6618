"""The bodies of requests to the engine: their fields and types. Other fields are refused by name.

Every field may be null, which means absent. Types are strict: true is not an integer and "1" is not a number, but an
integer is a number, and a number without a fraction is an integer.
"""

import logging
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from jaxgen.core.request import MAX_PRIORITY
from jaxgen.core.sampling_params import MAX_SEED
from jaxgen.server.schema.integers import Integer, is_whole
from jaxgen.server.schema.ranges import Alternatives, MaxTokens, shown

logger = logging.getLogger(__name__)

PROMPT_MESSAGE = "{} must be a string, a list of strings, a list of token ids, or a list of lists of token ids"
"""Error message of a field of type Prompt."""

UNKNOWN = "unknown_parameter"
UNSUPPORTED = "unsupported_parameter"
"""OpenAI's codes, by which some clients leave the field out and ask again."""

MAX_DROPPED = 1000
"""Most kinds of dropped keys that are told apart in the log: callers choose the names."""

Entry = TypeVar("Entry")
ListOf = Annotated[list[Entry], Field(fail_fast=True)]
"""A list that is validated up to its first fault, the only one that is reported.

A body has room for two million faults, and an error object for each would block the event loop.
"""


def prompt_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return ":text"
    first = value[0] if isinstance(value, list) and value else None
    kind = int if is_whole(first) else type(first)
    return {str: ":texts", int: ":tokens", list: ":token_lists"}.get(kind)


Prompt = Annotated[
    Annotated[str, Tag(":text")]
    | Annotated[ListOf[str], Tag(":texts")]
    | Annotated[ListOf[Integer], Tag(":tokens")]
    | Annotated[ListOf[ListOf[Integer]], Tag(":token_lists")],
    Discriminator(prompt_kind),
]

Stop = Annotated[
    Annotated[str, Tag(":text")] | Annotated[ListOf[str], Tag(":texts")],
    Discriminator(lambda value: ":texts" if isinstance(value, list) else ":text"),
]


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A field of OpenAI's or Anthropic's that this server does not honour. ``reason``: what callers are told.

    ``harmless``: values other than null that ask for nothing but what is done anyway. ``code``: of the error.
    """

    reason: str
    harmless: tuple[Any, ...] = ()
    code: str = UNSUPPORTED

    def allows(self, value: Any) -> bool:
        """Whether the value asks for nothing."""
        return value is None or any(type(value) is type(harmless) and value == harmless for harmless in self.harmless)


class Body(BaseModel):
    """An object whose fields are all named, those in ``unsupported`` too."""

    unsupported: ClassVar[dict[str, Unsupported]] = {}

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of an object that is to be read, or written again; None: it is none."""
    fields = vars(value) if isinstance(value, Body) else value
    return fields if isinstance(fields, dict) else None


class PartOfHistory(Body):
    """An object that callers' software may have taken from an answer, of any server, or marked for itself.

    Unknown keys are dropped, and logged once for each kind at debug level.
    """

    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _say_what_is_dropped(cls, value: Any) -> Any:
        debugs = logger.isEnabledFor(logging.DEBUG)
        if debugs and isinstance(value, dict) and not value.keys() <= (known := _keys_of(cls)):
            for name in value.keys() - known:
                _say_dropped(cls.__name__, name[:100])
        return value


@cache
def _keys_of(kind: type[Body]) -> frozenset[str]:
    """Return the keys of an object of the kind."""
    return frozenset(field.alias or name for name, field in kind.model_fields.items())


_dropped: set[tuple[str, str]] = set()


def _say_dropped(kind: str, name: str) -> None:
    if (kind, name) not in _dropped and len(_dropped) < MAX_DROPPED:
        _dropped.add((kind, name))
        logger.debug("dropped %r of a %s", name, kind)


class StreamOptions(Body):
    """``continuous_usage_stats``: every chunk carries the usage of its choice so far, unless ``include_usage`` is
    false. ``include_obfuscation``: padding against listeners who measure, which is not done."""

    include_obfuscation: bool | None = None
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchema(Body):
    """``strict`` may be anything: an answer always keeps to the schema. Nor does a name or description change it."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's way to say what the text of an answer must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Body):
    """vLLM's way: one of json, json_object, regex, choice and grammar; what is about white space goes with json.

    ``disable_additional_properties`` goes with json too, or alone with response_format and tools.
    """

    schema_: Any = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: ListOf[str] | None = None
    grammar: str | None = None
    disable_additional_properties: bool | None = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: str | None = None


class ComputingFields(Body):
    """Fields of every request that the engine computes. ``user`` only names the caller's end user."""

    model: str | None = None
    user: str | None = None
    cache_salt: str | None = None
    return_latency: bool | None = None


class Resume(Body):
    """The id of the last event received of a stream with this body; the stream resumes after it."""

    last_event_id: str


class ResumeFromTokens(Resume):
    """``token_ids``: the tokens that came, a list for each choice; they are then not computed one by one again."""

    token_ids: ListOf[ListOf[Integer]] | None = None


class SharedFields(ComputingFields):
    """Fields that requests for generated text have in all APIs, under one name and with one meaning.

    A field that is added here is taken by every API, and reaches ``SamplingParams`` by its name.
    """

    ignore_eos: bool | None = None
    min_p: float | None = shown(
        "Leave out tokens below this share of the most probable one's probability.", minimum=0, maximum=1
    )
    min_tokens: Integer | None = shown("Tokens before which the answer does not end by itself.", minimum=0)
    priority: Integer | None = shown("Lower is served first.", minimum=-MAX_PRIORITY, maximum=MAX_PRIORITY)
    repetition_penalty: float | None = shown(
        "Divides the logits of tokens that prompt or answer have; 1: off.", exclusiveMinimum=0, maximum=10
    )
    seed: Integer | None = shown(
        "The same request with the same seed: the same bits. -1: a random seed.",
        minimum=-MAX_SEED - 1,
        maximum=MAX_SEED,
    )
    stream: bool | None = None
    temperature: float | None = shown(
        "How freely tokens are drawn; 0 takes the most probable one.", minimum=0, maximum=2
    )
    top_k: Integer | None = shown("Draw from this number of most probable tokens; 0 or -1: from all.", minimum=-1)
    top_p: float | None = shown(
        "Draw from the most probable tokens that make up this share; 0: the most probable one.", minimum=0, maximum=1
    )


class CallerFields(SharedFields):
    """Fields of every request for generated text."""

    resume: Resume | None = None
    return_event_ids: bool | None = None


class OpenAIFields(CallerFields):
    """Fields that the requests of all of OpenAI's APIs have, under one name and with one meaning."""

    frequency_penalty: float | None = shown(
        "Lowers a token's logit by this for each time the answer has it.", minimum=-2, maximum=2
    )
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = shown(
        "Lowers a token's logit by this once the answer has it.", minimum=-2, maximum=2
    )
    service_tier: str | None = None
    stop: Stop | None = None
    stop_token_ids: ListOf[Integer] | None = None
    structured_outputs: StructuredOutputs | None = None


class SamplingFields(OpenAIFields):
    """Common fields of text and chat completions: OpenAI's fields, then fields that others add."""

    max_tokens: MaxTokens = None
    n: Integer | None = None
    stream_options: StreamOptions | None = None

    allowed_token_ids: ListOf[Integer] | None = None
    bad_words: ListOf[str] | None = None
    include_stop_str_in_output: bool | None = None
    prompt_logprobs: Integer | None = None
    response_format: ResponseFormat | None = None
    resume: ResumeFromTokens | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: Integer | None = None


class CompletionRequest(SamplingFields):
    """The body of /v1/completions."""

    prompt: Prompt | None = None
    best_of: Integer | None = None
    echo: bool | None = None
    logprobs: Alternatives = None
    suffix: str | None = None
