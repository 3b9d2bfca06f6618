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
    """The choices that have no token yet, and the tokens of their prompts."""

    def __init__(self, engine: EngineClient, config: ServerConfig) -> None:
        self._engine = engine
        self._config = config
        self._waiting: dict[str, int] = {}

    @property
    def num_tokens(self) -> int:
        return sum(self._waiting.values())

    def enter(self, choices: Sequence[Queued]) -> None:
        """Raises ApiError 429 where they are too many beside those that wait. An empty queue takes any request."""
        config, waiting, tokens = self._config, len(self._waiting), self.num_tokens
        added = sum(len(choice.request.prompt) for choice in choices)
        over = waiting + len(choices) > config.max_queued_requests or tokens + added > config.max_queued_tokens
        if waiting and over:
            raise ApiError(
                429,
                f"The server is at its limit: {waiting} requests with {tokens} tokens wait for their first token.",
                code="queue_full",
                headers={"Retry-After": str(self._retry_after(tokens))},
            )
        self._waiting |= {choice.request.request_id: len(choice.request.prompt) for choice in choices}

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
