"""Build a response of /v1/responses: one object, or the events that build it up."""

from collections.abc import Callable, Iterator
from time import time
from typing import Any, override

from jaxgen.client import EngineClient
from jaxgen.server.api.response_builder import ResponseBuilder
from jaxgen.server.api.sse import sse_head
from jaxgen.server.errors import ApiError
from jaxgen.server.generation.choice import Choice, ChoiceDelta
from jaxgen.server.middleware.context import RequestContext
from jaxgen.server.requests.answers import AnswerReading
from jaxgen.server.requests.params import CompletionParams
from jaxgen.server.responses.output import Event, ItemLogprobs, Output
from jaxgen.server.resume.event_ids import LastEvent, Mark
from jaxgen.server.resume.resumption import Binding
from jaxgen.server.resume.ticket import AnswerIdentity
from jaxgen.server.schema.responses import ResponsesRequest

type Keep = Callable[[dict[str, Any]], None]
"""Keeps the response."""


class ItemsBuilder(ResponseBuilder):
    """OpenAI's response: output items with text and calls, in one object or as a stream."""

    _counts_events = True

    def __init__(
        self,
        body: ResponsesRequest,
        engine: EngineClient,
        params: CompletionParams,
        context: RequestContext,
        identity: AnswerIdentity,
        reading: AnswerReading,
        keep: Keep | None,
    ) -> None:
        """``keep`` None: the response is not kept."""
        super().__init__(
            engine,
            [reading.prompt],
            params,
            context,
            identity,
            prefix="resp",
            logprobs=ItemLogprobs,
            reading=reading,
        )
        self._body = body
        self._keep = keep
        self._output = self._new_output()
        self._begun = False

    @override
    def number_events(self, binding: Binding, last: LastEvent | None, *, shown: bool) -> None:
        super().number_events(binding, last, shown=shown)
        self._output = self._new_output()

    def _new_output(self) -> Output:
        return Output(self._identity.name.hex(), self.choices[0].starts)

    def full_response(self) -> dict[str, Any]:
        for _ in self._grow(self.choices[0].take()):
            pass
        return self._finished()

    def _update_events(self, choice: Choice) -> list[bytes]:
        piece = choice.take()
        events = [*self._first(), *self._grow(piece)]
        ends = self._ids.ends(0, Mark(piece.num_tokens, piece.checksum), len(events), self._next_number)
        return [self._numbered(event) + end for event, end in zip(events[len(events) - len(ends) :], ends, strict=True)]

    def _ended(self) -> list[bytes]:
        event = {"type": f"response.{self._status}", "response": self._finished()}
        if self._usage_sent:
            return []
        end = self._ids.end_of_usage(self._next_number)
        return [self._numbered(event) + end]

    def _failed(self, error: ApiError) -> list[bytes]:
        """Return the error as the last event, without an id: that of the event before it stays valid."""
        first = self._first() if self._next_number == 0 else ()  # clients need them before any other event
        response = self._response("failed") | {"error": {"code": "server_error", "message": error.message}}
        events = [*first, {"type": "response.failed", "response": response}]
        return [self._numbered(event) + b"\n\n" for event in events]

    def _first(self) -> Iterator[Event]:
        """Yield the events before all output, once."""
        if not self._begun:
            self._begun = True
            for kind in ("created", "in_progress"):
                yield {"type": f"response.{kind}", "response": self._response("in_progress")}

    def _grow(self, piece: ChoiceDelta) -> Iterator[Event]:
        """Add new output to the items, and yield its events."""
        if piece.logprobs is not None:
            self._output.add_logprobs(piece.logprobs)
        for delta in piece.deltas:
            yield from self._output.add(delta)
        if piece.finish_reason is not None:
            yield from self._output.end(self._status)

    @property
    def _status(self) -> str:
        """The status of the response once its choice has ended."""
        return "incomplete" if self.choices[0].finish_reason == "length" else "completed"

    def _finished(self) -> dict[str, Any]:
        """Return the response at its end, and keep it. What has failed, or was left by its caller, never comes here."""
        response = self._response(self._status)
        if self._keep is not None:
            self._keep(response)
        return response

    def _numbered(self, event: Event) -> bytes:
        """Return an event with the next number, to which its id is added."""
        number, self._next_number = self._next_number, self._next_number + 1
        return sse_head({**event, "sequence_number": number}, name=event["type"])

    def _response(self, status: str) -> dict[str, Any]:
        body, ended = self._body, status != "in_progress"
        return {
            "id": self._id.replace("-", "_"),
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time()) if status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._model,
            "output": self._output.items if ended else [],
            "usage": self._response_usage() if ended else None,
            "background": False,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {"effort": None, "summary": None},
            "safety_identifier": body.safety_identifier,
            "service_tier": self.params.service.name,
            "store": self._keep is not None,
            "temperature": self.params.sampling.temperature,
            "text": {"format": _json(body.text.format) if body.text and body.text.format else {"type": "text"}},
            "tool_choice": "auto" if body.tool_choice is None else _json(body.tool_choice),
            "tools": [_json(tool) for tool in body.functions],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": self.params.sampling.top_p,
            "truncation": "disabled",
            "user": body.user,
            **(self._end_extras(self.choices[0]) if ended else {}),
        }

    def _response_usage(self) -> dict[str, Any]:
        usage = self._usage()
        return {
            "input_tokens": usage.prompt_tokens,
            # Writes to the cache cost callers nothing here; OpenAI's client requires the field.
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }


def _json(value: Any) -> Any:
    return value if isinstance(value, str) else value.model_dump(by_alias=True, exclude_none=True)
