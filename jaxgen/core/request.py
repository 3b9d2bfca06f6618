"""Requests to the engine, and the events that it returns. Host only, no jax."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from struct import unpack
from typing import overload

from jaxgen.core.limits import require
from jaxgen.core.model_info import Pooling
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.service_class import DEFAULT_CLASS, ServiceClass

MAX_PRIORITY = 2**31 - 1


class FinishReason(StrEnum):
    """Why a request ended; each request ends with exactly one reason."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue or to pool. Raises ValueError if a value is out of range: RequestRefusedError, which names
    the field, if the caller chose it.

    ``request_id`` is unique among the requests that have not ended.

    A request with ``pooling`` generates no tokens (max_tokens 0), and its last event has the prompt's embedding.

    Requests share cached prefixes only if they have the same ``cache_salt``, or none. A cached prefix shows in the time
    to the first token, so tenants that must not learn each other's prompts need different salts.

    ``service``: the class that sets the request's targets. Among the requests of one ``tenant`` and class, lower
    ``priority`` is served first. When tenants want more tokens than there are, they get tokens in proportion to their
    weights. Requests in the ``background`` get the tokens that all others leave.
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
    """Seconds that the request had waited before the engine got it; its targets include them."""
    answer: tuple[int, ...] = ()
    """Tokens that the answer begins with: they are computed like a prompt and count as generated, without events."""
    latency: bool = False
    """Whether each event of the request has a ``Latency``."""

    def __post_init__(self) -> None:
        require(len(self.prompt) > 0, "prompt", "must have at least one token")
        check_priority(self.priority)
        require(self.cache_salt != "", "cache_salt", "must not be empty")
        require(
            not (self.background and self.service.has_targets),
            "service",
            f"class {self.service.name!r} promises times, and the background has none",
        )
        require(
            self.pooling is None or self.params.max_tokens == 0,
            "max_tokens",
            f"must be 0 with pooling, which generates nothing, not {self.params.max_tokens}",
        )
        require(
            not self.answer or len(self.answer) < self.params.max_tokens,
            "answer",
            f"has {len(self.answer)} tokens, and max_tokens is {self.params.max_tokens}: no token is left to compute",
        )
        # Not of the caller's choice: a wrong value is a mistake of the front end.
        if not 0.0 <= self.waited_seconds < inf:
            raise ValueError(f"waited_seconds must be 0 or more, not {self.waited_seconds}")
        if not 0.0 < self.tenant_weight < inf:
            raise ValueError(f"tenant_weight must be above 0, not {self.tenant_weight}")

    @property
    def num_given(self) -> int:
        """Tokens to compute before the first new one: the prompt, and the answer so far."""
        return len(self.prompt) + len(self.answer)

    @property
    def wants_every_token(self) -> bool:
        """Whether the request needs a result of each prompt token, so that no token may come from the prefix cache."""
        return self.pooling is not None or self.params.prompt_logprobs is not None

    @property
    def wants_steps(self) -> bool:
        """Whether anything is to be computed for the request."""
        return self.params.max_tokens > 0 or self.wants_every_token


def check_priority(priority: int) -> None:
    """Raise RequestRefusedError if the priority is out of range."""
    require(
        abs(priority) <= MAX_PRIORITY,
        "priority",
        f"must be between {-MAX_PRIORITY} and {MAX_PRIORITY} (lower is served first), not {priority}",
    )


class Alternatives(Sequence[tuple[int, float]]):
    """Tokens and their values, as a tuple of pairs that takes 12 bytes for each: an answer may have millions."""

    __slots__ = ("_packed",)

    def __init__(self, tokens: bytes, values: bytes) -> None:
        """``tokens``: int32. ``values``: float64, as many."""
        self._packed = tokens + values

    def __len__(self) -> int:
        return len(self._packed) // _PAIR_BYTES

    @overload
    def __getitem__(self, at: int) -> tuple[int, float]: ...
    @overload
    def __getitem__(self, at: slice) -> "Alternatives": ...
    def __getitem__(self, at: int | slice) -> "tuple[int, float] | Alternatives":
        if not isinstance(at, slice):
            return tuple(self)[at]
        middle = 4 * len(self)
        tokens, values = memoryview(self._packed[:middle]).cast("i"), memoryview(self._packed[middle:]).cast("d")
        return Alternatives(tokens[at].tobytes(), values[at].tobytes())

    def __iter__(self) -> Iterator[tuple[int, float]]:
        count = len(self)
        numbers = unpack(f"={count}i{count}d", self._packed)
        return zip(numbers[:count], numbers[count:], strict=True)

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


_PAIR_BYTES = 12


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural-log probabilities of the raw model at one position: of the token itself, and of as many of the most
    probable tokens as were asked for, most probable first. ``rank``: how many tokens of the vocabulary are as probable
    as the token itself or more probable; of equal ones, those of lower ids come first."""

    token: int
    logprob: float
    top: Sequence[tuple[int, float]]
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """The times that a request spent until one of its events, in seconds of the engine's clock."""

    queue_seconds: float
    """Seconds from its arrival to the start of its first step, or of its copies from host memory."""
    prompt_seconds: float
    """Seconds from then to its first token."""
    decode_seconds: float
    """Seconds from its first token to this event."""
    prompt_chunks: int
    """Chunks in which its prompt was computed; chunks computed again after a preemption count again."""
    steps: int
    """Steps from its first one to that of this event."""
    padding_share: float
    """Padding among the tokens of these steps, 0 to 1."""
    preemptions: int
    accepted_length: float = 1.0
    """Tokens that its steps with drafts brought on average; 1 without any."""


@dataclass(slots=True)  # not frozen: creating one, for every token, would take three times as long
class TokenEvent:
    """An event of a request: a token, its end, or both. Never changed after it is created.

    ``token`` is the generated token; None on an event that only ends the request (abort, error, max_tokens 0).
    With ``finish_reason`` STOP the token is the EOS or stop token that ended it: counted, but not part of the text.
    ``prompt_logprobs`` comes on the request's first event, one entry per prompt token, the first entry None.
    The event with a ``finish_reason`` is the request's last. If it is ERROR, ``error`` is the message, and ``param`` is
    the field of the request that caused it; None: no field did.
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
    """Prompt tokens that the prefix cache had; on the first event that comes from a step."""
    latency: Latency | None = field(default=None, compare=False)
    """On the first and the last event that come from steps, and on all of them if the request asked for it. Not
    compared, so that events of two runs are equal if only their times differ."""
    param: str | None = None
