"""POST /v1/responses: OpenAI's newer API for conversations. Nothing is stored between requests."""

from collections.abc import Iterator
from dataclasses import replace
from time import time
from typing import Any

from jaxgen.server.api.chat import resolve_chat
from jaxgen.server.api.endpoint import AppState, GeneratingEndpoint
from jaxgen.server.api.response_builder import ResponseBuilder
from jaxgen.server.api.responses_input import FORMAT, as_chat, renamed
from jaxgen.server.api.responses_output import Event, Output
from jaxgen.server.api.sse import sse_event
from jaxgen.server.errors import ApiError
from jaxgen.server.generation.choice import Choice
from jaxgen.server.generation.logprobs import ChatLogprobs
from jaxgen.server.middleware.context import RequestContext
from jaxgen.server.requests.params import CompletionParams
from jaxgen.server.requests.prompts import Prompt
from jaxgen.server.requests.tools import ToolUse
from jaxgen.server.schema.base import parse_body
from jaxgen.server.schema.responses import ResponsesRequest


class ResponsesEndpoint(GeneratingEndpoint[ResponsesRequest]):
    def _parse(self, data: dict[str, Any]) -> ResponsesRequest:
        body = parse_body(ResponsesRequest, data, self._services.config)
        body.refuse_what_is_missing()
        return body

    async def _build_response(self, body: ResponsesRequest, context: RequestContext) -> ResponseBuilder:
        try:
            prompt, params, tools = await resolve_chat(as_chat(body), self._services)
        except ApiError as error:
            raise renamed(error) from error
        grammar = params.sampling.grammar
        if grammar is not None and grammar.source == "response_format":
            params = params.with_grammar(replace(grammar, source=FORMAT))  # the name for error messages
        return ItemsBuilder(body, self._services, prompt, params, context, tools)


class ItemsBuilder(ResponseBuilder):
    """OpenAI's response: output items with text and calls, in one object or as a stream."""

    def __init__(
        self,
        body: ResponsesRequest,
        services: AppState,
        prompt: Prompt,
        params: CompletionParams,
        context: RequestContext,
        tools: ToolUse | None,
    ) -> None:
        super().__init__(services.engine, [prompt], params, context, prefix="resp", logprobs=ChatLogprobs, tools=tools)
        self._body = body
        self._output = Output()
        self._num_events = 0

    def whole(self) -> dict[str, Any]:
        for _ in self._grow(self.choices[0]):
            pass
        return self._response(self._status)

    def _update_events(self, choice: Choice) -> Iterator[bytes]:
        if self._num_events == 0:
            for kind in ("created", "in_progress"):
                yield self._numbered({"type": f"response.{kind}", "response": self._response("in_progress")})
        yield from map(self._numbered, self._grow(choice))

    def _ended(self) -> list[bytes]:
        status = self._status
        return [self._numbered({"type": f"response.{status}", "response": self._response(status)})]

    def _failed(self, error: ApiError) -> list[bytes]:
        response = self._response("failed") | {"error": {"code": "server_error", "message": error.message}}
        return [self._numbered({"type": "response.failed", "response": response})]

    def _grow(self, choice: Choice) -> Iterator[Event]:
        """Add the choice's new output to the items, and yield its events."""
        piece = choice.take()
        for delta in piece.deltas:
            yield from self._output.add(delta)
        if piece.finish_reason is not None:
            yield from self._output.end(self._status)

    @property
    def _status(self) -> str:
        """The status of the response once its choice has ended."""
        return "incomplete" if self.choices[0].finish_reason == "length" else "completed"

    def _numbered(self, event: Event) -> bytes:
        numbered = sse_event({**event, "sequence_number": self._num_events}, name=event["type"])
        self._num_events += 1
        return numbered

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
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {"effort": None, "summary": None},
            "safety_identifier": body.safety_identifier,
            "service_tier": self._params.service.name,
            "store": False,
            "temperature": self._params.sampling.temperature,
            "text": {"format": _json(body.text.format) if body.text and body.text.format else {"type": "text"}},
            "tool_choice": "auto" if body.tool_choice is None else _json(body.tool_choice),
            "tools": [_json(tool) for tool in body.tools or ()],
            "top_p": self._params.sampling.top_p,
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
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }


def _json(value: Any) -> Any:
    return value if isinstance(value, str) else value.model_dump(by_alias=True, exclude_none=True)
