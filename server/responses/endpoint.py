"""POST /v1/responses, OpenAI's newer API for conversations, and POST /v1/responses/input_tokens."""

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from jaxgen.server.api.chat import resolve_chat, with_format_named
from jaxgen.server.api.endpoint import AppState, GeneratingEndpoint, check_model
from jaxgen.server.api.query import caller
from jaxgen.server.api.response_builder import ResponseBuilder
from jaxgen.server.errors import ApiError, bad_request
from jaxgen.server.middleware.context import RequestContext
from jaxgen.server.requests.answers import AnswerReading
from jaxgen.server.requests.params import CompletionParams
from jaxgen.server.responses.builder import ItemsBuilder
from jaxgen.server.responses.input import FORMAT, as_chat, renamed
from jaxgen.server.responses.items import RequestItems, read_items
from jaxgen.server.responses.store import ResponseStore
from jaxgen.server.resume.ticket import AnswerIdentity
from jaxgen.server.schema.parsing import parse_body
from jaxgen.server.schema.responses import ConversationFields, InputTokensRequest, ResponsesRequest


class ResponsesEndpoint(GeneratingEndpoint[ResponsesRequest]):
    """``store`` None: nothing is kept, as of the lines of batches, whose answers are in files."""

    def __init__(self, services: AppState, store: ResponseStore | None = None) -> None:
        super().__init__(services)
        self._store = store or ResponseStore(0, 0, 0.0)

    def parse(self, data: dict[str, Any]) -> ResponsesRequest:
        body = parse_body(ResponsesRequest, data, self._services.config.limits)
        body.refuse_what_is_missing()
        if body.store and not self._store.keeps_any:
            raise bad_request("store: no responses are kept here; send false, or leave it out.", "store")
        return body

    async def _build_response(
        self, body: ResponsesRequest, context: RequestContext, identity: AnswerIdentity
    ) -> ResponseBuilder:
        asked = read_items(body, self._store, context.caller, self._services.config.limits)
        params, reading = await _resolve(body, asked, self._services, context.caller)
        keep = None
        if self._store.keeps_any and body.store is not False:
            items = asked.as_json(identity.name.hex())
            keep = partial(self._store.keep, context.caller, items=items, previous=asked.previous)
        return ItemsBuilder(body, self._engine, params, context, identity, reading, keep)


class InputTokensEndpoint:
    """Counts the tokens of what would be asked."""

    def __init__(self, services: AppState, store: ResponseStore) -> None:
        self._services = services
        self._store = store

    async def count(self, request: Request) -> Response:
        services = self._services
        data = await services.bodies.read_json_object(request.scope, request.receive)
        body = parse_body(InputTokensRequest, data, services.config.limits)
        check_model(body.model, services.engine)
        body.refuse_what_is_missing()
        asked = read_items(body, self._store, caller(request), services.config.limits)
        _, reading = await _resolve(body, asked, services, caller(request))
        return JSONResponse({"object": "response.input_tokens", "input_tokens": len(reading.prompt.tokens)})


async def _resolve(
    body: ConversationFields, asked: RequestItems, services: AppState, name: str
) -> tuple[CompletionParams, AnswerReading]:
    """Return the parameters of a request, and how answers to its prompt are read. ``name``: the caller's. Raises
    ApiError with names of /v1/responses."""
    try:
        params, reading = await resolve_chat(as_chat(body, asked), services, name)
    except ApiError as error:
        raise renamed(error) from error
    return with_format_named(params, FORMAT), reading
