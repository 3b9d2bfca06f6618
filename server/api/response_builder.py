"""Build the response to a request from its choices: one JSON object, or server-sent events."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from time import time
from typing import Any
from uuid import uuid4

from starlette.types import Send

from jaxgen.client import EngineClient
from jaxgen.server.api.sse import DONE, EventWriter, encode, sse_event, start_of_events
from jaxgen.server.errors import ApiError, as_api_error
from jaxgen.server.generation.choice import Choice, Piece, latency_json
from jaxgen.server.generation.generation import Generation
from jaxgen.server.generation.logprobs import Logprobs, prompt_logprobs_json
from jaxgen.server.middleware.context import RequestContext
from jaxgen.server.requests.answers import AnswerReading
from jaxgen.server.requests.engine_requests import completion_request
from jaxgen.server.requests.params import CompletionParams
from jaxgen.server.requests.prompts import Prompt

_TEXT = uuid4().hex
"""Placeholder for a text: an encoded event is cut at it."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. A prompt counts once, however many choices it has; every generated token counts.

    ``cached_tokens``: prompt tokens whose keys and values were in the prefix cache when the first choice began.
    ``reasoning_tokens``: generated tokens of reasoning; None: the model's answers have none.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int | None = None

    def as_json(self) -> dict[str, Any]:
        reasoning = {"completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens}}
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            **({} if self.reasoning_tokens is None else reasoning),
        }


class ResponseBuilder(ABC):
    """The choices of one request, and the response made from them."""

    def __init__(
        self,
        engine: EngineClient,
        prompts: Sequence[Prompt],
        params: CompletionParams,
        context: RequestContext,
        *,
        prefix: str,
        logprobs: Callable[[bool], Logprobs],
        reading: AnswerReading | None = None,
    ) -> None:
        """``context``: of the caller's request. ``prefix``: of the response's id. ``logprobs``: makes the list of a
        choice's log-probabilities, which may show tokens by their ids. ``reading``: how answers are read; None: as
        text alone."""
        self._id = f"{prefix}-{uuid4().hex}"
        self._created = int(time())
        self._model = engine.model.name
        self._fingerprint = f"fp_{engine.digest}"
        self._prompts = prompts
        self._params = params
        self._request_context = context
        self._tokenizer = engine.tokenizer
        self._reading = reading
        self._told: set[int] = set()
        self._around: dict[int, tuple[bytes, bytes]] = {}
        """By choice: the bytes before and after the text of an event that has only text."""
        self._error: str | None = None
        self.choices = [
            self._choice(prompt, i, j, logprobs(params.tokens_as_ids))
            for i, prompt in enumerate(prompts)
            for j in range(params.best_of)
        ]

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """Return the response as one object, when all choices have ended."""

    @abstractmethod
    def _update_events(self, choice: Choice) -> Iterable[bytes]:
        """Return events with the choice's new output."""

    @abstractmethod
    def _failed(self, error: ApiError) -> list[bytes]:
        """Return the last events of a stream that fails."""

    @abstractmethod
    def _ended(self) -> list[bytes]:
        """Return the last events of a stream that succeeds."""

    async def stream(self, generation: Generation[Choice], send: Send, send_more: Send) -> None:
        """Stream the response as server-sent events.

        Events that are ready together go out in one write; no output is taken while a write waits. ``send`` takes the
        first message, ``send_more`` the others. Raises ApiError before anything is sent.
        """
        # Until the first token the response can still be an error with its own status.
        events = self._events(await generation.next_updates())
        await send(start_of_events())
        writer = EventWriter(send_more)
        # Output of several choices goes out together; only a single choice is written without waking this task.
        drain = partial(self._write_at_once, self.choices[0], writer) if len(self.choices) == 1 else None
        try:
            while events:
                await writer.write(events)
                try:
                    updates = await generation.next_updates(drain)
                    await writer.until_free()  # take the output only then
                    events = self._events(updates)
                except Exception as error:
                    told = as_api_error(error)
                    self._error = told.code or told.kind
                    await writer.write(self._failed(told), last=True)
                    return
            await writer.write(self._ended(), last=True)
        finally:
            writer.close()

    def _write_at_once(self, choice: Choice, writer: EventWriter) -> bool:
        """Write the choice's new output. Return False where the caller must: at its end, or while a write waits."""
        if choice.finish_reason is not None or not writer.is_free:
            return False
        if choice.has_updates:
            writer.write_at_once(self._update_events(choice))
        return True

    def _events(self, updates: Iterable[Choice]) -> list[bytes]:
        return [event for choice in updates for event in self._update_events(choice)]

    def _choice(self, prompt: Prompt, i: int, j: int, logprobs: Logprobs) -> Choice:
        index = i * self._params.best_of + j
        request = completion_request(f"{self._id}-{i}-{j}", prompt, self._params, j, self._request_context)
        return Choice(index, prompt, request, self._tokenizer, self._params, logprobs, self._reading)

    @property
    def failed(self) -> bool:
        """Whether an error ended the stream."""
        return self._error is not None

    def summary(self) -> dict[str, Any]:
        """Return the fields for the log, without any text."""
        usage = self._usage()
        return {
            "model": self._model,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "choices": len(self.choices),
            "finish_reasons": sorted({choice.finish_reason or "none" for choice in self.choices}),
        } | ({} if self._error is None else {"error": self._error})

    def prompt_texts(self) -> list[str]:
        """Return the decoded text of each prompt."""
        return [self._tokenizer.decode(prompt.tokens) for prompt in self._prompts]

    def _end_extras(self, choice: Choice) -> dict[str, Any]:
        """Return the requested extra fields of a choice that has ended."""
        return latency_json(choice.latency, choice.cached_tokens) if self._params.return_latency else {}

    def _usage(self) -> Usage:
        return Usage(
            sum(len(prompt.tokens) for prompt in self._prompts),
            sum(choice.num_tokens for choice in self.choices),
            sum(choice.cached_tokens for choice in self.choices[:: self._params.best_of]),
            self._reasoning_tokens(self.choices),
        )

    def _reasoning_tokens(self, choices: Iterable[Choice]) -> int | None:
        if self._reading is None or self._reading.form.reasoning is None:
            return None
        return sum(choice.num_reasoning_tokens for choice in choices)


class ChoicesBuilder(ResponseBuilder):
    """A response with ``choices``, or events with one choice each."""

    @abstractmethod
    def _pieces(self, choice: Choice, piece: Piece) -> Iterable[dict[str, Any]]:
        """Return the choice's new output as entries of ``choices``, one for each event."""

    @property
    @abstractmethod
    def _chunk_object(self) -> str:
        """The value of ``object`` in events."""

    def _prompt_extras(self, choice: Choice) -> dict[str, Any]:
        """Return the requested extra fields of the choice's prompt, once for each choice."""
        extras: dict[str, Any] = {}
        if choice.index not in self._told:
            self._told.add(choice.index)
            if self._params.return_token_ids:
                extras["prompt_token_ids"] = choice.prompt.tokens
            if self._params.prompt_logprobs is not None:
                known = choice.prompt_logprobs
                extras["prompt_logprobs"] = prompt_logprobs_json(self._tokenizer, known, self._params.prompt_logprobs)
        return extras

    def _chunk_extras(self) -> dict[str, Any]:
        """Return the fields that an event has beside its choice."""
        return {}

    def _token_extras(self, piece: Piece) -> dict[str, Any]:
        """Return the requested extra fields of the generated tokens."""
        return {"token_ids": piece.token_ids} if self._params.return_token_ids else {}

    def _failed(self, error: ApiError) -> list[bytes]:
        """Return the error as the last event, without [DONE]."""
        return [sse_event(error.body())]

    def _ended(self) -> list[bytes]:
        if not self._params.include_usage:
            return [DONE]
        head = self._head(self._chunk_object)
        return [sse_event({**head, "choices": [], "usage": self._usage().as_json()}), DONE]

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "system_fingerprint": self._fingerprint,
        }

    def _update_events(self, choice: Choice) -> Iterable[bytes]:
        piece = choice.take()
        text = piece.only_text
        around = self._around.get(choice.index)
        if text is not None and around is not None:
            return (around[0] + encode(text) + around[1],)
        events = list(self._encoded(choice, piece))
        if text is not None and not (self._params.return_token_ids or self._params.continuous_usage):
            # From here on only the text changes: for most tokens just the text is encoded.
            (event,) = self._encoded(choice, piece._replace(deltas=(_TEXT,)))
            before, after = event.split(encode(_TEXT))
            self._around[choice.index] = before, after
        return events

    def _usage_so_far(self, choice: Choice, entry: dict[str, Any]) -> Usage:
        """Return the usage of the choice up to an event's entry; one with the role comes before the first token."""
        begins = "role" in entry.get("delta", ())
        told = 0 if begins else choice.num_tokens
        return Usage(
            len(choice.prompt.tokens), told, choice.cached_tokens, self._reasoning_tokens(() if begins else (choice,))
        )

    def _encoded(self, choice: Choice, piece: Piece) -> Iterator[bytes]:
        for entry in self._pieces(choice, piece):
            if entry["finish_reason"] is not None:
                entry.update(self._end_extras(choice))
            chunk = {"choices": [entry], **self._chunk_extras()}
            if self._params.continuous_usage:
                chunk["usage"] = self._usage_so_far(choice, entry).as_json()
            elif self._params.include_usage:
                chunk["usage"] = None
            # The common head of all chunks is encoded once: one object, cut after its last field.
            yield self._event_head + encode(chunk)[1:] + b"\n\n"

    @cached_property
    def _event_head(self) -> bytes:
        return b"data: " + encode(self._head(self._chunk_object))[:-1] + b","
