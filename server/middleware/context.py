"""What is known of a request when it ends, for its line in the log and its trace. No prompt text unless asked."""

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

from starlette.types import Scope, Send

RECORD = "jaxgen.record"
"""In a request's scope: its RequestRecord."""

CALLER_DIGITS = 12
"""Of the caller's name, which is a hash of its key: enough to tell callers apart."""

MOST_OF_A_PROMPT = 4096
"""Characters of each prompt, where prompts are asked for."""


class Answered(Protocol):
    """What the engine was asked for, and what came of it."""

    @property
    def failed(self) -> bool:
        """Whether an error ended it after the status had gone out."""
        ...

    def summary(self) -> dict[str, Any]:
        """Without any text."""
        ...

    def prompt_texts(self) -> list[str]:
        """Of each prompt, what its tokens say."""
        ...


@dataclass(slots=True)
class RequestContext:
    """Filled in by whoever knows; ``fields`` leaves out what nobody knew."""

    request_id: str
    method: str
    path: str
    arrival: float = field(default_factory=perf_counter)
    status: int | None = None
    error: str | None = None
    """The code, or else the type, of the error that the caller was told."""
    caller: str = ""
    weight: float = 1.0
    """Of the caller, where several want more than there is."""
    send_more: Send | None = None
    """For the messages after an answer's first, which is the only one that middleware changes."""
    answer: Answered | None = None
    first_token: float | None = None
    """When the first token of any choice came, a ``perf_counter`` reading."""

    @property
    def seconds(self) -> float:
        """Since it arrived."""
        return max(0.0, perf_counter() - self.arrival)

    @property
    def failed(self) -> bool:
        """Whether the fault was the server's."""
        return (self.status or 0) >= 500 or (self.answer is not None and self.answer.failed)

    def fields(self, *, with_prompts: bool = False) -> dict[str, Any]:
        """By name, in the order of interest; times in seconds."""
        found: dict[str, Any] = {
            "method": self.method,
            "path": self.path[:200],
            "status": self.status,
            "request_id": self.request_id,
            "seconds": round(self.seconds, 6),
            "caller": self.caller[:CALLER_DIGITS] or None,
            "error": self.error,
        }
        if self.answer is not None:
            found |= self.answer.summary()
            if with_prompts:
                found["prompts"] = [text[:MOST_OF_A_PROMPT] for text in self.answer.prompt_texts()]
        if self.first_token is not None:
            found["ttft_seconds"] = round(self.first_token - self.arrival, 6)
        return {name: value for name, value in found.items() if value is not None}


def context_of(scope: Scope) -> RequestContext:
    """That of the request, which RequestIdMiddleware has made."""
    record: RequestContext = scope[RECORD]
    return record
