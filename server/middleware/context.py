"""Collect data of a request for its log line and its trace. They have no prompt text unless configured."""

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

from starlette.types import Scope, Send

CONTEXT = "jaxgen.context"
"""Key in a request's scope: its RequestContext."""

CALLER_DIGITS = 12
"""Logged digits of the caller's name, which is a hash of its API key: enough to tell callers apart."""

MOST_OF_AN_ADDRESS = 64
"""Most characters of a caller's address: a proxy may pass on whatever its caller claims."""


class Answered(Protocol):
    """The response of a request to the engine."""

    @property
    def failed(self) -> bool:
        """Whether an error ended the response after its status was sent."""
        ...

    def summary(self) -> dict[str, Any]:
        """Return its fields for the log, without any text."""
        ...

    def prompt_texts(self) -> list[str]:
        """Return the decoded text of each prompt."""
        ...


@dataclass(slots=True)
class RequestContext:
    """Data of one request, filled in by middleware and endpoints; ``fields`` omits unknown values."""

    request_id: str
    method: str
    path: str
    """Below the mount point of the app."""
    client: str = ""
    """The caller's address, or what a trusted proxy says that it is."""
    arrival: float = field(default_factory=perf_counter)
    status: int | None = None
    error: str | None = None
    """The code, or else the type, of the caller's error."""
    caller: str = ""
    key: bytes = field(default=b"", repr=False)
    """The caller's API key; empty where no key is needed."""
    weight: float = 1.0
    """The caller's weight under contention."""
    operator: bool = False
    """Whether its key is an operator's, who may see what all callers do."""
    is_quiet: bool = False
    """Whether it is a probe, or asks for a file of the page: logged at level DEBUG, and not traced."""
    send_more: Send | None = None
    """Sends ASGI messages after a response's first, past the middleware, which changes only the first."""
    answer: Answered | None = None
    first_token: float | None = None
    """When the first token of any choice arrived, a ``perf_counter`` reading."""

    @property
    def seconds(self) -> float:
        """Seconds since the request arrived."""
        return max(0.0, perf_counter() - self.arrival)

    @property
    def failed(self) -> bool:
        """Whether the server failed on the request."""
        return (self.status or 0) >= 500 or (self.answer is not None and self.answer.failed)

    def fields(self, *, prompt_characters: int | None = None) -> dict[str, Any]:
        """Return the known values by name, the most interesting first; times in seconds.

        ``prompt_characters``: most of each prompt; None: no prompts.
        """
        fields: dict[str, Any] = {
            "method": self.method,
            "path": self.path[:200],
            "status": self.status,
            "request_id": self.request_id,
            "seconds": round(self.seconds, 6),
            "client": self.client[:MOST_OF_AN_ADDRESS] or None,
            "caller": self.caller[:CALLER_DIGITS] or None,
            "error": self.error,
        }
        if self.answer is not None:
            fields |= self.answer.summary()
            if prompt_characters is not None:
                fields["prompts"] = [text[:prompt_characters] for text in self.answer.prompt_texts()]
        if self.first_token is not None:
            fields["ttft_seconds"] = round(self.first_token - self.arrival, 6)
        return {name: value for name, value in fields.items() if value is not None}


def route_path(scope: Scope) -> str:
    """Return the path below the mount point of the app."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def context_of(scope: Scope) -> RequestContext:
    """Return the request's context, which RequestIdMiddleware has made."""
    context: RequestContext = scope[CONTEXT]
    return context
