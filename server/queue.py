"""Bounds what waits: beyond it a caller is told at once when to come again, rather than kept without end."""

from collections.abc import Sequence
from math import ceil
from typing import Protocol

from jaxgen.request import EngineClient, Request
from server.config import ServerConfig
from server.errors import ApiError

LONGEST_RETRY_S = 600


class Queued(Protocol):
    """What waits: a choice, or a text to embed."""

    @property
    def request(self) -> Request: ...


class Queue:
    """The choices that have no token yet, the texts that have no embedding, and the tokens of their prompts."""

    def __init__(self, engine: EngineClient, config: ServerConfig) -> None:
        self._engine = engine
        self._config = config
        self._waiting: dict[str, tuple[str, int]] = {}
        """By request: the name that it counts by, and the tokens of its prompt."""

    @property
    def num_tokens(self) -> int:
        return sum(tokens for _, tokens in self._waiting.values())

    def enter(self, choices: Sequence[Queued]) -> None:
        """Raises ApiError 429 where they are too many beside those that wait. An empty queue takes any request.

        The texts of a request for embeddings count as one, or else a request with as many as are allowed would be
        refused whenever anything waits; but no further one is taken while as many texts wait as requests may.
        """
        config, tokens = self._config, self.num_tokens
        waiting = len({name for name, _ in self._waiting.values()})
        first = choices[0].request
        added = sum(len(choice.request.prompt) for choice in choices)
        count = waiting + len(choices) if first.pooling is None else len(self._waiting) + 1
        if waiting and (count > config.max_queued_requests or tokens + added > config.max_queued_tokens):
            raise ApiError(
                429,
                f"The server is at its limit: {waiting} requests with {tokens} tokens wait for their first token.",
                code="queue_full",
                headers={"Retry-After": str(self._retry_after(tokens))},
            )
        for request in (choice.request for choice in choices):
            name = request.request_id if request.pooling is None else first.request_id
            self._waiting[request.request_id] = name, len(request.prompt)

    def leave(self, choice: Queued) -> None:
        """It has a token, or has ended; once more does nothing."""
        self._waiting.pop(choice.request.request_id, None)

    def _retry_after(self, tokens: int) -> int:
        """Seconds in which steps, as long as they were so far, compute half of these tokens."""
        stats = self._engine.stats()
        computed = stats.prompt_tokens + stats.generation_tokens + stats.padded_tokens
        if not computed:
            return self._config.retry_after_s
        return min(LONGEST_RETRY_S, max(1, ceil(tokens / 2 * stats.step_seconds / computed)))
