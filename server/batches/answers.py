"""Answer the lines of batches through the endpoints' own code. Whatever goes wrong with a line is its result."""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from jaxgen.core.errors import EngineDeadError, TooCostlyError
from jaxgen.server.batches.lines import answered, parse_line
from jaxgen.server.envelopes import anthropic_error, of_messages
from jaxgen.server.errors import ApiError, as_api_error

MOST_RESULT_BYTES = 256 * 2**20
"""Longest result of one line."""


class LineEndpoint(Protocol):
    """An endpoint that answers batch lines."""

    async def answer_whole(self, data: dict[str, Any], caller: str) -> dict[str, Any]:
        """Return the response to a body. Raises the errors of an online request."""
        ...


class LineAnswers:
    """Answers lines by the ``endpoints`` of their URLs."""

    def __init__(self, endpoints: Mapping[str, LineEndpoint]) -> None:
        self._endpoints = endpoints

    async def result(self, raw: bytes, owner: str) -> tuple[bool, str]:
        """Return whether a line was answered well, and the line of its result. Raises EngineDeadError."""
        name, url = None, ""
        try:
            line = parse_line(raw)  # which was valid once: the file may have been changed
            name, url = line.custom_id, line.url
            text = answered(name, 200, await self._answer(url, line.body, owner))
            _check_length(text)
        except EngineDeadError:
            raise
        except Exception as error:
            refusal = as_api_error(error)
            status, body = anthropic_error(refusal) if of_messages(url) else (refusal.status, refusal.body())
            return False, answered(name, status, body)
        return True, text

    async def _answer(self, url: str, body: dict[str, Any], owner: str) -> dict[str, Any]:
        """Return the answer to a body, once its caller's new grammars are not refused for what others have cost."""
        while True:
            try:
                return await self._endpoints[url].answer_whole(body, owner)
            except TooCostlyError as error:
                await asyncio.sleep(error.retry_after)


def _check_length(text: str) -> None:
    """Raise ApiError 413 for a result that is too long. It is ASCII."""
    if len(text) > MOST_RESULT_BYTES:
        raise ApiError(
            413,
            f"The result has {len(text)} bytes; a line of a batch may have {MOST_RESULT_BYTES}: ask for fewer choices, "
            "log-probabilities or embeddings in one line.",
            code="result_too_long",
        )
