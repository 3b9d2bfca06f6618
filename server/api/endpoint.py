"""Base classes of the endpoints that send requests to the engine."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pydantic_core
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from jaxgen.client import EngineClient
from jaxgen.server.api.body import Bodies
from jaxgen.server.api.pieces import send_json
from jaxgen.server.api.response_builder import ResponseBuilder
from jaxgen.server.api.sse import until_disconnect
from jaxgen.server.config import ServerConfig
from jaxgen.server.errors import ApiError, bad_request
from jaxgen.server.generation.generation import Generation
from jaxgen.server.generation.queue_limit import QueueLimit
from jaxgen.server.metrics.metrics import Metrics
from jaxgen.server.middleware.auth import CALLER
from jaxgen.server.middleware.context import CONTEXT, RequestContext, context_of
from jaxgen.server.middleware.deadline import Deadline
from jaxgen.server.middleware.lifecycle import Lifecycle
from jaxgen.server.requests.answers import AnswerReader
from jaxgen.server.requests.chat_template import Conversations
from jaxgen.server.requests.prompts import PromptReader
from jaxgen.server.resume.resumption import Binding, Identities, read_last_event, shows_ids
from jaxgen.server.resume.secrets import Secrets
from jaxgen.server.resume.ticket import AnswerIdentity
from jaxgen.server.schema.base import CallerFields, ComputingFields


@dataclass(frozen=True, slots=True)
class AppState:
    """The objects that an app's endpoints share."""

    engine: EngineClient
    config: ServerConfig
    lifecycle: Lifecycle
    queue: QueueLimit
    metrics: Metrics
    prompts: PromptReader
    conversations: Conversations
    answers: AnswerReader
    bodies: Bodies
    identities: Identities
    secrets: Secrets


class ComputingEndpoint[Fields: ComputingFields](ABC):
    """An endpoint as an ASGI app, not as a function of a request: it must notice a disconnect while it works."""

    def __init__(self, services: AppState) -> None:
        self._services = services
        self._engine = services.engine

    @abstractmethod
    def parse(self, data: dict[str, Any]) -> Fields:
        """Return the typed request. Raises ApiError 400 that names the field."""

    @abstractmethod
    async def _respond(self, body: Fields, deadline: Deadline, scope: Scope, receive: Receive, send: Send) -> None:
        """Compute and send the response; cancelled when the caller disconnects, or at the deadline.

        Raises ApiError before anything is sent.
        """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        with services.lifecycle.request() as deadline:
            try:
                async with deadline.bound():
                    data = await services.bodies.read_json_object(scope, receive)
            except ClientDisconnect:
                return
            body = self._read(data, scope.get(CALLER, ""))
            await until_disconnect(receive, self._respond(body, deadline, scope, receive, send))

    async def answer_whole(self, data: dict[str, Any], caller: str) -> dict[str, Any]:
        """Return the response to a body that is not from an HTTP request: a batch line. Raises ApiError."""
        body = self._read(data, caller)
        if isinstance(body, CallerFields) and body.stream:
            raise bad_request("stream must be false here: the answer comes whole.", "stream")
        parts: list[bytes] = []

        async def send(message: Message) -> None:
            parts.append(message.get("body", b""))

        async def receive() -> Message:
            raise RuntimeError("the body has been read")

        context = RequestContext(f"req-{uuid4().hex}", "POST", "", caller=caller)
        scope = {"type": "http", CONTEXT: context}
        await self._respond(body, Deadline(None), scope, receive, send)
        answer: dict[str, Any] = pydantic_core.from_json(b"".join(parts))
        return answer

    def _read(self, data: dict[str, Any], caller: str) -> Fields:
        body = self.parse(data)
        check_model(body.model, self._engine)
        return _of_caller(body, caller)


class GeneratingEndpoint[Fields: CallerFields](ComputingEndpoint[Fields]):
    """An endpoint that generates text and responds with one object or a stream."""

    @abstractmethod
    async def _build_response(self, body: Fields, context: RequestContext, identity: AnswerIdentity) -> ResponseBuilder:
        """Return the choices to compute for the body. Raises ApiError."""

    async def prepare(self, body: Fields, deadline: Deadline, scope: Scope) -> ResponseBuilder:
        """Return the choices to compute for the body, of which nothing is computed yet. Raises ApiError."""
        context, services = context_of(scope), self._services
        last = read_last_event(body, scope, services.secrets)
        shown = shows_ids(body, scope, resumes=last is not None, default=services.config.answers.stream_event_ids)
        identity = services.identities.new() if last is None else last.ticket.identity
        async with deadline.bound():
            builder = context.answer = await self._build_response(body, context, identity)
        if body.stream and (shown or last is not None):
            secret = services.secrets.of(context.key)
            builder.number_events(Binding(secret, self._engine.digest, body), last, shown=shown)
        return builder

    async def _respond(self, body: Fields, deadline: Deadline, scope: Scope, receive: Receive, send: Send) -> None:
        builder = await self.prepare(body, deadline, scope)
        context, services = context_of(scope), self._services
        async with Generation(
            self._engine, builder.choices, services.queue, services.metrics, context, deadline
        ) as generation:
            if body.stream:
                send_more, pause = context.send_more or send, services.config.connections.sse_ping_interval_s
                await builder.stream(generation, send, send_more, ping_seconds=pause)
                return
            await generation.finish()
        if builder.has_logprobs:
            await send_json(builder.full_response(), send)
        else:
            await JSONResponse(builder.full_response())(scope, receive, send)


def _of_caller[Fields: ComputingFields](body: Fields, caller: str) -> Fields:
    """Add the caller to the cache salt: no caller learns from the speed of answers what others have sent.

    Raises ApiError 400 for an empty salt.
    """
    if body.cache_salt == "":
        raise bad_request("cache_salt must not be empty.", "cache_salt")
    if not caller:
        return body
    return body.model_copy(update={"cache_salt": f"{caller}/{body.cache_salt or ''}"})


def check_model(name: str | None, engine: EngineClient) -> None:
    """Check the model's name; None: the one that is served. Raises ApiError 404 for the name of another model."""
    if name is not None and name != engine.model.name:
        raise model_not_found(name, engine)


def model_not_found(name: str, engine: EngineClient) -> ApiError:
    message = f"The model `{name[:200]}` does not exist. This server has `{engine.model.name}`."
    return ApiError(404, message, param="model", code="model_not_found")
