"""What a caller asks and what it is told: the vocabulary between the engine and its faces. Host only, no jax."""

from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from jaxgen.core.model_info import Pooling
from jaxgen.core.sampling_params import SamplingParams, require
from jaxgen.core.service_class import DEFAULT_CLASS, ServiceClass

MAX_PRIORITY = 2**31 - 1


class FinishReason(StrEnum):
    """Why a request ended; every request ends with exactly one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to be continued, or pooled. ``request_id`` is unique among the requests that live.

    With ``pooling`` it generates nothing (max_tokens 0), and its last event has the prompt's embedding.

    Requests share cached prefixes only within one ``cache_salt``; those without one share among themselves. A cached
    prefix shows in the time to the first token, so tenants who must not learn each other's prompts get salts.

    ``service`` is the class whose targets are its. Among the requests of a ``tenant`` in one class those of lower
    ``priority`` are served first. Tenants that all want more than there is get tokens in proportion to their weights.
    Requests in the ``background`` get what all others leave over.
    """

    request_id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    cache_salt: str | None = None
    pooling: Pooling | None = None
    priority: int = 0
    background: bool = False
    service: ServiceClass = DEFAULT_CLASS
    tenant: str = ""
    tenant_weight: float = 1.0
    waited_seconds: float = 0.0
    """That its caller had waited when the engine got it: what its class promises counts from before."""
    latency: bool = False
    """Whether each of its events is to say where its time went."""

    def __post_init__(self) -> None:
        require(len(self.prompt) > 0, "prompt must have at least one token")
        require(
            abs(self.priority) <= MAX_PRIORITY,
            f"priority must be between {-MAX_PRIORITY} and {MAX_PRIORITY}, not {self.priority}",
        )
        require(self.cache_salt != "", "cache_salt must not be empty")
        require(
            not (self.background and self.service.promises),
            f"service class {self.service.name!r} promises times, and the background has none",
        )
        require(0.0 <= self.waited_seconds < inf, f"waited_seconds must be 0 or more, not {self.waited_seconds}")
        require(0.0 < self.tenant_weight < inf, f"tenant_weight must be above 0, not {self.tenant_weight}")
        require(
            self.pooling is None or self.params.max_tokens == 0,
            f"max_tokens must be 0 with pooling, which generates nothing, not {self.params.max_tokens}",
        )

    @property
    def wants_every_token(self) -> bool:
        """Whether it asks for something of each token of its prompt, so that none may come from a cache."""
        return self.pooling is not None or self.params.prompt_logprobs is not None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural-log probabilities of the raw model at one position: the token itself and the best alternatives,
    most probable first, as many as were asked for."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Where a request's time went, seconds by the engine's clock, up to an event of it."""

    queue_seconds: float
    """From its arrival to the start of its first step, or of copies from the host's memory for it."""
    prompt_seconds: float
    """From there to its first token."""
    decode_seconds: float
    """From there to this event."""
    prompt_chunks: int
    """Pieces in which its prompt was computed; those computed again after a preemption count again."""
    steps: int
    """From its first to this event's."""
    padding_share: float
    """Of the tokens of these steps, 0 to 1."""
    preemptions: int


@dataclass(slots=True)  # not frozen: that makes its birth, once for every token, three times as long
class TokenEvent:
    """One thing that happened to a request. Never changed once made.

    ``token`` is the generated token; None on an event that only ends the request (abort, error, max_tokens 0).
    With ``finish_reason`` STOP the token is the EOS or stop token that ended it: counted, but not part of the text.
    ``prompt_logprobs`` comes on the request's first event, one entry per prompt token, the first entry None.
    The event with a ``finish_reason`` is the request's last. ``error`` says what went wrong when it is ERROR, ``param``
    which field of the request's is to blame; None: none is.
    """

    request_id: str
    token: int | None = None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None
    embedding: tuple[float, ...] | None = None
    """The prompt's pooled final hidden states, not normalised; on the last event of a request with ``pooling``."""
    cached_tokens: int | None = None
    """Prompt tokens that the prefix cache already had; on the first event that comes from a step."""
    latency: Latency | None = field(default=None, compare=False)
    """On the first and the last event that come from steps; on all if the request asked for it. Not compared: events of
    two runs are equal if they say the same of the request."""
    param: str | None = None
