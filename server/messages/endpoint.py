"""POST /v1/messages, Anthropic's API for conversations, and POST /v1/messages/count_tokens."""

from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from jaxgen.server.api.chat import resolve_chat, with_format_named
from jaxgen.server.api.endpoint import AppState, GeneratingEndpoint, check_model
from jaxgen.server.api.query import caller
from jaxgen.server.api.response_builder import ResponseBuilder
from jaxgen.server.errors import ApiError, bad_request, refusals
from jaxgen.server.messages.builder import MessageBuilder
from jaxgen.server.messages.input import FORMAT, as_chat, renamed
from jaxgen.server.middleware.context import RequestContext
from jaxgen.server.requests.answers import AnswerReading
from jaxgen.server.requests.params import CompletionParams
from jaxgen.server.resume.ticket import AnswerIdentity
from jaxgen.server.schema.messages import CountTokensRequest, MessagesRequest, PromptFields
from jaxgen.server.schema.parsing import parse_body


class MessagesEndpoint(GeneratingEndpoint[MessagesRequest]):
    def parse(self, data: dict[str, Any]) -> MessagesRequest:
        body = parse_body(MessagesRequest, data, self._services.config.limits)
        if body.max_tokens is None:
            raise bad_request("max_tokens: Field required.", "max_tokens")
        if body.max_tokens < 1:
            raise bad_request(f"max_tokens must be 1 or more, not {body.max_tokens}.", "max_tokens")
        return body

    async def _build_response(
        self, body: MessagesRequest, context: RequestContext, identity: AnswerIdentity
    ) -> ResponseBuilder:
        params, reading = await _resolve(body, self._services, context.caller)
        assert body.max_tokens is not None, "parse refuses that"
        with refusals():
            # Where the context has room for fewer, the answer ends there, and says so.
            params = replace(params, sampling=replace(params.sampling, max_tokens=body.max_tokens))
        edits = body.context_management is not None
        return MessageBuilder(self._engine, params, context, identity, reading, edits=edits)


class CountTokensEndpoint:
    """Counts the tokens of what would be asked."""

    def __init__(self, services: AppState) -> None:
        self._services = services

    async def count(self, request: Request) -> Response:
        services = self._services
        data = await services.bodies.read_json_object(request.scope, request.receive)
        body = parse_body(CountTokensRequest, data, services.config.limits)
        check_model(body.model, services.engine)
        _, reading = await _resolve(body, services, caller(request))
        return JSONResponse({"input_tokens": len(reading.prompt.tokens)})


async def _resolve(body: PromptFields, services: AppState, name: str) -> tuple[CompletionParams, AnswerReading]:
    """Return the parameters of a request but ``max_tokens``, and how answers to its prompt are read. ``name``: the
    caller's. Raises ApiError with names of /v1/messages."""
    chat = as_chat(body, services.config.limits.max_messages)
    try:
        params, reading = await resolve_chat(chat, services, name)
    except ApiError as error:
        raise renamed(error) from error
    return with_format_named(params, FORMAT), reading
