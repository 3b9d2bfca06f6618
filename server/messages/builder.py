"""Build the answer of /v1/messages: one message, or the events that build it up."""

from collections.abc import Iterator
from typing import Any, override

from jaxgen.client import EngineClient
from jaxgen.core.service_class import DEFAULT_CLASS
from jaxgen.server.api.response_builder import ResponseBuilder
from jaxgen.server.api.sse import sse_event, sse_head
from jaxgen.server.envelopes import anthropic_error
from jaxgen.server.errors import ApiError
from jaxgen.server.generation.choice import Choice, ChoiceDelta
from jaxgen.server.generation.logprobs import ChatLogprobs
from jaxgen.server.messages.output import Blocks, Event
from jaxgen.server.middleware.context import RequestContext
from jaxgen.server.requests.answers import AnswerReading
from jaxgen.server.requests.params import CompletionParams
from jaxgen.server.resume.event_ids import LastEvent, Mark
from jaxgen.server.resume.resumption import Binding
from jaxgen.server.resume.ticket import AnswerIdentity

STANDARD = "standard"
"""Anthropic's name for the default class."""
_PING = sse_event({"type": "ping"}, name="ping")


class MessageBuilder(ResponseBuilder):
    """Anthropic's message: blocks with text, thoughts and calls, in one object or as a stream.

    All events of an answer belong to its tokens, the last ones to the last token, so that a stream can be resumed after
    any of them.
    """

    def __init__(
        self,
        engine: EngineClient,
        params: CompletionParams,
        context: RequestContext,
        identity: AnswerIdentity,
        reading: AnswerReading,
        *,
        edits: bool,
    ) -> None:
        """``edits``: the caller has asked for edits of the context, and is told that there were none."""
        super().__init__(
            engine, [reading.prompt], params, context, identity, prefix="msg", logprobs=ChatLogprobs, reading=reading
        )
        self._edits: dict[str, Any] = {"context_management": {"applied_edits": []}} if edits else {}
        self._blocks = Blocks()
        self._begun = False

    @override
    def number_events(self, binding: Binding, last: LastEvent | None, *, shown: bool) -> None:
        super().number_events(binding, last, shown=shown)
        self._blocks = Blocks()

    def full_response(self) -> dict[str, Any]:
        for _ in self._grow(self.choices[0].take_whole()):
            pass
        return {
            **self._message(),
            "content": self._blocks.content,
            **self._stop(),
            "usage": self._message_usage(),
            **self._edits,
            **self._end_extras(self.choices[0]),
        }

    def _update_events(self, choice: Choice) -> list[bytes]:
        piece = choice.take()
        events = [sse_head(event, name=event["type"]) for event in self._grow(piece)]
        return self._ids.numbered(choice.index, Mark(piece.num_tokens, piece.checksum), events)

    def _ended(self) -> list[bytes]:
        return []  # the last token's events were the last ones

    def _failed(self, error: ApiError) -> list[bytes]:
        """Return the error as the last event, without an id: that of the event before it stays valid."""
        _, body = anthropic_error(error, self._request_context.request_id)
        return [sse_event(body, name="error")]

    @override
    def _ping(self) -> bytes:
        return _PING if self._begun else super()._ping()  # message_start comes before all other events

    def _grow(self, piece: ChoiceDelta) -> Iterator[Event]:
        """Add new output to the blocks, and yield its events."""
        if not self._begun:
            self._begun = True
            usage = {**self._message_usage(), "output_tokens": 0}
            message = {**self._message(), "content": [], **_stopped(None), "usage": usage}
            yield {"type": "message_start", "message": message}
        for delta in piece.deltas:
            yield from self._blocks.add(delta)
        if piece.finish_reason is not None:
            yield from self._blocks.end()
            end = {"delta": self._stop(), "usage": self._message_usage(), **self._edits}
            yield {"type": "message_delta", **end, **self._end_extras(self.choices[0])}
            yield {"type": "message_stop"}

    def _message(self) -> dict[str, Any]:
        return {"id": self._id.replace("-", "_"), "type": "message", "role": "assistant", "model": self._model}

    def _stop(self) -> dict[str, str | None]:
        """Return why the answer has ended."""
        choice = self.choices[0]
        if choice.finish_reason == "tool_calls":
            return _stopped("tool_use")
        if choice.finish_reason == "length":
            asked = choice.num_tokens >= self.params.sampling.max_tokens
            return _stopped("max_tokens" if asked else "model_context_window_exceeded")
        stop_string = choice.stop_string
        return _stopped("end_turn" if stop_string is None else "stop_sequence", stop_string)

    def _message_usage(self) -> dict[str, Any]:
        """Return the usage so far. All of the prompt is cached, at no cost, so nothing counts as written."""
        usage = self._usage()
        thought = usage.reasoning_tokens
        return {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
            **({} if thought is None else {"output_tokens_details": {"thinking_tokens": thought}}),
            "service_tier": STANDARD if self.params.service is DEFAULT_CLASS else self.params.service.name,
        }


def _stopped(reason: str | None, sequence: str | None = None) -> dict[str, str | None]:
    return {"stop_reason": reason, "stop_sequence": sequence, "stop_details": None}
