"""A client of /v1/completions that records when tokens arrive. It does little work, since the server may share its
processors."""

import json
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import aiohttp

from jaxgen.server.benchmark.metrics import Outcome, RequestRecord, TokenCount

MAX_EVENT_BYTES = 2**20
MAX_REASON_CHARS = 200


class LoadError(Exception):
    """The server refused or failed on a request, or its response is not a completion stream; the message says which."""


@dataclass(slots=True)
class Trace:
    """One running request. ``start``: a ``perf_counter`` reading; ``prompt_tokens``: the planned number, until the
    server reports its count; ``max_tokens``: as requested."""

    start: float
    prompt_tokens: int
    max_tokens: int | None = None
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    num_tokens: int = 0
    counted_by: TokenCount = "chunks"

    def feed(self, event: dict[str, Any], now: float) -> None:
        """Record one event of the stream. Raises LoadError when it is an error, or not a completion chunk."""
        if "error" in event:
            raise LoadError(f"error event: {_message(event)}")
        choices, usage = event.get("choices"), event.get("usage")
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise LoadError("an event that is not a completion chunk")
        if usage is None:
            if choices and choices[0].get("text"):
                self._add(1, now)
            return
        self.prompt_tokens, counted = _usage(usage)
        if choices:
            self.counted_by = "continuous usage"
            self._add(counted - self.num_tokens, now)
        elif self.counted_by == "chunks":
            # The number of tokens in each chunk is unknown, so arrivals keep one token for each chunk.
            self.counted_by = "final usage"
            self.num_tokens = counted

    def _add(self, tokens: int, now: float) -> None:
        if tokens <= 0:
            return
        self.num_tokens += tokens
        if self.arrivals and self.arrivals[-1][0] == now:
            tokens += self.arrivals.pop()[1]
        self.arrivals.append((now, tokens))

    def record(self, outcome: Outcome, reason: str = "") -> RequestRecord:
        """Return the record of the request, with the current time as its end."""
        return RequestRecord(
            outcome=outcome,
            reason=reason[:MAX_REASON_CHARS],
            start=self.start,
            end=perf_counter(),
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.num_tokens,
            max_tokens=self.max_tokens,
            arrivals=tuple(self.arrivals),
            counted_by=self.counted_by,
        )


class CompletionsClient:
    """A client, as an async context. ``base_url``: as for an OpenAI client, such as ``http://127.0.0.1:8000/v1``."""

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        self._base_url = base_url.rstrip("/")
        # The server's compressor would hold back a compressed stream until its buffer is full.
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    async def __aenter__(self) -> "CompletionsClient":
        self._session = aiohttp.ClientSession(
            # No limit: waiting for a connection would count as the server's time. A new connection for each request: on
            # a reused one that the server is just closing, a request fails before the server sees it.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            # The caller bounds the time of each request.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            headers=self._headers,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def models(self) -> list[dict[str, Any]]:
        """Return the entries of /v1/models; none where the route does not exist.

        Raises LoadError, aiohttp.ClientError or OSError.
        """
        async with self._session.get(f"{self._base_url}/models", allow_redirects=False) as answer:
            if answer.status == 404:
                return []
            await _require_ok(answer)
            entries = _parse(await answer.read()).get("data")
        if not isinstance(entries, list) or not all(
            isinstance(e, dict) and isinstance(e.get("id"), str) for e in entries
        ):
            raise LoadError("/models did not answer with a list of models")
        return entries

    async def stream(self, body: bytes, trace: Trace) -> None:
        """Send one request and feed ``trace`` until [DONE]. Raises LoadError, aiohttp.ClientError or OSError."""
        url = f"{self._base_url}/completions"
        async with self._session.post(url, data=body, allow_redirects=False) as answer:
            await _require_ok(answer)
            rest = b""
            async for part in answer.content.iter_any():
                now = perf_counter()
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    if line.startswith(b"data:") and _is_done(line[5:].strip(), trace, now):
                        return
                if len(rest) > MAX_EVENT_BYTES:
                    raise LoadError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        raise LoadError("the stream ended before [DONE]")


def _is_done(data: bytes, trace: Trace, now: float) -> bool:
    if data == b"[DONE]":
        return True
    trace.feed(_parse(data), now)
    return False


def _parse(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise LoadError(f"an answer that is not JSON: {data[:80]!r}") from error
    if not isinstance(value, dict):
        raise LoadError(f"an answer that is not a JSON object: {data[:80]!r}")
    return value


def _usage(usage: Any) -> tuple[int, int]:
    match usage:
        case {"prompt_tokens": int(prompt), "completion_tokens": int(completion)}:
            return prompt, completion
    raise LoadError(f"usage without prompt_tokens and completion_tokens: {usage!r}")


async def _require_ok(answer: aiohttp.ClientResponse) -> None:
    if answer.status != 200:
        text = (await answer.content.read(4096)).decode(errors="replace")
        try:
            text = _message(json.loads(text))
        except ValueError:
            text = text.strip()
        raise LoadError(f"HTTP {answer.status}: {text}")


def _message(event: dict[str, Any]) -> str:
    """Return OpenAI's error message, or the value in its place."""
    error = event.get("error") if isinstance(event, dict) else event
    return str(error.get("message", error) if isinstance(error, dict) else error)
