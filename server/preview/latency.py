"""POST /v1/latency: when a request would be answered if it came now."""

from typing import Any

from jaxgen.core.errors import WouldBeLateError
from jaxgen.core.quote import Quote
from jaxgen.server.api.response_builder import ResponseBuilder
from jaxgen.server.errors import ApiError, as_api_error, bad_request
from jaxgen.server.preview.endpoint import PreviewEndpoint
from jaxgen.server.schema.base import SamplingFields

PLACES = 6
"""Digits of seconds after the point."""


class LatencyEndpoint(PreviewEndpoint):
    """Answers with the engine's prediction, or with why the request would get a 429. A body with ``messages`` is one of
    /v1/chat/completions, any other one of /v1/completions."""

    def parse(self, data: dict[str, Any]) -> SamplingFields:
        return self._chat.parse(data) if "messages" in data else self._completions.parse(data)

    async def _preview(self, builder: ResponseBuilder) -> dict[str, Any]:
        if len(builder.choices) != 1:
            raise bad_request(
                f"A prediction is for one answer, not for {len(builder.choices)} (prompts times n or best_of).",
                "n",
            )
        (choice,) = builder.choices
        answer = {"object": "latency", "model": self._engine.model.name, "prompt_tokens": len(choice.prompt.tokens)}
        try:
            self._services.queue.check(builder.choices, choice.request.tenant)
            quote = await self._engine.quote(choice.request)
        except (ApiError, WouldBeLateError) as error:
            return answer | _times(None) | {"refused": _refused(as_api_error(error))}
        return answer | _times(quote) | {"refused": None}


def _times(quote: Quote | None) -> dict[str, Any]:
    """Return what is predicted; None: it would be refused."""
    if quote is None:
        return {"cached_tokens": None, "first_token": None, "inter_token": None}
    return {
        "cached_tokens": quote.cached_tokens,
        "first_token": _seconds(quote.first_token, quote.first_token_most),
        "inter_token": _seconds(quote.inter_token, quote.inter_token_most),
    }


def _seconds(expected: float, most: float) -> dict[str, float]:
    return {"expected_seconds": round(expected, PLACES), "most_seconds": round(most, PLACES)}


def _refused(error: ApiError) -> dict[str, Any]:
    """Return the code and the words of the 429 that the request would get, and after how long to ask again."""
    after = int((error.headers or {}).get("Retry-After", 0))
    return {"code": error.code, "message": error.message, "retry_after_seconds": after}
