"""Limit the queue: a request beyond the limit is refused at once with a Retry-After, and does not wait without end."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from jaxgen.client import EngineClient
from jaxgen.core.request import Request
from jaxgen.server.errors import ApiError
from jaxgen.server.limits import Queue

LONGEST_RETRY_S = 600


class Queued(Protocol):
    """A waiting choice, or text to embed."""

    @property
    def request(self) -> Request: ...


@dataclass(frozen=True, slots=True)
class _Entry:
    """A waiting engine request. ``name``: entries with the same name count once. ``bounded``: the engine refuses it
    where its first token would be late."""

    name: str
    tokens: int
    caller: str
    bounded: bool


class QueueLimit:
    """Counts choices without a first token, texts without an embedding, and the tokens that they begin with."""

    def __init__(self, engine: EngineClient, limits: Queue, retry_after_s: int) -> None:
        self._engine = engine
        self._limits = limits
        self._retry_after_s = retry_after_s
        self._waiting: dict[str, _Entry] = {}

    @property
    def num_tokens(self) -> int:
        return sum(entry.tokens for entry in self._waiting.values())

    def enter(self, choices: Sequence[Queued], caller: str = "") -> None:
        """Add a request's choices to the queue. Raises ApiError 429 as ``check`` does."""
        bounded = self.check(choices, caller)
        first = choices[0].request
        for request in (choice.request for choice in choices):
            name = request.request_id if request.pooling is None else first.request_id
            self._waiting[request.request_id] = _Entry(name, request.num_given, caller, bounded)

    def check(self, choices: Sequence[Queued], caller: str = "") -> bool:
        """Raise ApiError 429 where a request's choices exceed a limit, by number or tokens. Return whether they are of
        the queue that is bounded by the engine.

        An empty queue takes any request. A caller within an equal share of the limits is not refused because of other
        callers' requests. Requests of classes with a first-token target, which are refused where they would be late,
        have a queue of their own, which other requests cannot fill.

        The texts of a request for embeddings count as one: else a request with the most texts allowed would be refused
        whenever another request waits. But no further one is taken while as many texts wait as requests may.
        """
        first = choices[0].request
        bounded = first.service.first_token_target(1) is not None and not first.service.serve_late
        queued = [entry for entry in self._waiting.values() if entry.bounded is bounded]
        own = [entry for entry in queued if entry.caller == caller]
        num_callers = len({entry.caller for entry in queued} | {caller})
        if (
            queued
            and not self._fits(queued, choices)
            and not (num_callers > 1 and self._fits(own, choices, num_callers))
        ):
            waiting, tokens = len({entry.name for entry in queued}), sum(entry.tokens for entry in queued)
            raise ApiError(
                429,
                f"The server is at its limit: {waiting} requests with {tokens} tokens wait for their first token.",
                code="queue_full",
                headers={"Retry-After": str(self._retry_after(tokens))},
            )
        return bounded

    def _fits(self, queued: Sequence[_Entry], choices: Sequence[Queued], shares: int = 1) -> bool:
        """Whether the choices and these entries fit within the limits, each divided by ``shares``."""
        if choices[0].request.pooling is None:
            count = len({entry.name for entry in queued}) + len(choices)
        else:
            count = len(queued) + 1
        tokens = sum(entry.tokens for entry in queued) + sum(choice.request.num_given for choice in choices)
        return (
            count <= self._limits.max_queued_requests // shares and tokens <= self._limits.max_queued_tokens // shares
        )

    def leave(self, choice: Queued) -> None:
        """Remove a choice that has a token or has ended; a second call does nothing."""
        self._waiting.pop(choice.request.request_id, None)

    def _retry_after(self, tokens: int) -> int:
        """Seconds in which the engine computes half of these tokens at its mean speed so far."""
        stats = self._engine.stats()
        computed = stats.prompt_tokens + stats.generation_tokens + stats.padded_tokens
        if not computed:
            return self._retry_after_s
        return min(LONGEST_RETRY_S, max(1, ceil(tokens / 2 * stats.step_seconds / computed)))
