"""Build the responses of /v1/completions and /v1/chat/completions from their choices."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any
from uuid import uuid4

from jaxgen.server.api.response_builder import ResponseBuilder
from jaxgen.server.api.sse import DONE, encode, sse_event
from jaxgen.server.errors import ApiError
from jaxgen.server.generation.choice import Choice, ChoiceDelta
from jaxgen.server.generation.logprobs import prompt_logprobs_json
from jaxgen.server.generation.usage import Usage
from jaxgen.server.resume.event_ids import Mark

_TEXT = uuid4().hex
"""Placeholder for a text: an encoded event is cut at it."""


class ChoicesBuilder(ResponseBuilder):
    """A response with ``choices``, or events with one choice each."""

    @abstractmethod
    def _pieces(self, choice: Choice, piece: ChoiceDelta) -> Iterable[dict[str, Any]]:
        """Return the choice's new output as entries of ``choices``, one for each event."""

    @property
    @abstractmethod
    def _chunk_object(self) -> str:
        """The value of ``object`` in events."""

    def _prompt_extras(self, choice: Choice) -> dict[str, Any]:
        """Return the requested extra fields of the choice's prompt, once for each choice."""
        extras: dict[str, Any] = {}
        if choice.index not in self._sent:
            self._sent.add(choice.index)
            if self.params.return_token_ids:
                extras["prompt_token_ids"] = choice.prompt.tokens
            if self.params.prompt_logprobs is not None:
                known = choice.prompt_logprobs
                extras["prompt_logprobs"] = prompt_logprobs_json(self._tokenizer, known, self.params.prompt_logprobs)
        return extras

    def _chunk_extras(self) -> dict[str, Any]:
        """Return the fields that an event has in addition to its choice."""
        return {}

    def _token_extras(self, piece: ChoiceDelta) -> dict[str, Any]:
        """Return the requested extra fields of the generated tokens."""
        return {"token_ids": piece.token_ids} if self.params.return_token_ids else {}

    def _failed(self, error: ApiError) -> list[bytes]:
        """Return the error as the last event, without [DONE]."""
        return [sse_event(error.body())]

    def _ended(self) -> list[bytes]:
        if not self.params.include_usage or self._usage_sent:
            return [DONE]
        last = {**self._head(self._chunk_object), "choices": [], "usage": self._usage().as_json()}
        return [_data(last) + self._ids.end_of_usage(), DONE]

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "system_fingerprint": self._fingerprint,
        }

    def _update_events(self, choice: Choice) -> list[bytes]:
        piece = choice.take()
        mark = Mark(piece.num_tokens, piece.checksum)
        text = piece.only_text
        around = self._around.get(choice.index)
        if text is not None and around is not None:
            return self._ids.numbered(choice.index, mark, (around[0] + encode(text) + around[1],))
        events = list(self._encoded(choice, piece))
        if text is not None and not (self.params.return_token_ids or self.params.continuous_usage):
            # From here on only the text changes: for most tokens just the text is encoded.
            (event,) = self._encoded(choice, piece._replace(deltas=(_TEXT,)))
            before, after = event.split(encode(_TEXT))
            self._around[choice.index] = before, after
        return self._ids.numbered(choice.index, mark, events)

    def _usage_so_far(self, choice: Choice, piece: ChoiceDelta, entry: dict[str, Any]) -> Usage:
        """Return the usage of the choice up to an event's entry; one with the role comes before the first token."""
        begins = "role" in entry.get("delta", ())
        num_sent = 0 if begins else piece.num_tokens
        reasoning = self._reasoning_tokens(() if begins else (piece,))
        return Usage(len(choice.prompt.tokens), num_sent, choice.cached_tokens, reasoning)

    def _encoded(self, choice: Choice, piece: ChoiceDelta) -> Iterator[bytes]:
        for entry in self._pieces(choice, piece):
            if entry["finish_reason"] is not None:
                entry.update(self._end_extras(choice))
            chunk = {"choices": [entry], **self._chunk_extras()}
            if self.params.continuous_usage:
                chunk["usage"] = self._usage_so_far(choice, piece, entry).as_json()
            elif self.params.include_usage:
                chunk["usage"] = None
            # The common head of all chunks is encoded once: one object, cut after its last field.
            yield self._event_head + encode(chunk)[1:]

    @cached_property
    def _event_head(self) -> bytes:
        return _data(self._head(self._chunk_object))[:-1] + b","


def _data(value: Any) -> bytes:
    """Return an event's data, to which its id is added."""
    return b"data: " + encode(value)
