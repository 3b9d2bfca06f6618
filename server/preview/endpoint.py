"""The base class of endpoints that take the body of another route and compute nothing."""

from abc import abstractmethod
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from jaxgen.server.api.chat import ChatEndpoint
from jaxgen.server.api.completions import CompletionsEndpoint
from jaxgen.server.api.endpoint import AppState, ComputingEndpoint
from jaxgen.server.api.response_builder import ResponseBuilder
from jaxgen.server.middleware.deadline import Deadline
from jaxgen.server.schema.base import CompletionRequest, SamplingFields
from jaxgen.server.schema.chat import ChatRequest


class PreviewEndpoint(ComputingEndpoint[SamplingFields]):
    """Takes bodies of /v1/completions and /v1/chat/completions, and refuses what these refuse before they compute."""

    def __init__(self, services: AppState) -> None:
        super().__init__(services)
        self._completions = CompletionsEndpoint(services)
        self._chat = ChatEndpoint(services)

    @abstractmethod
    async def _preview(self, builder: ResponseBuilder) -> Any:
        """Return the answer, as JSON. ``builder``: the choices that would be computed. Raises ApiError."""

    async def _respond(
        self, body: SamplingFields, deadline: Deadline, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if isinstance(body, ChatRequest):
            builder = await self._chat.prepare(body, deadline, scope)
        else:
            assert isinstance(body, CompletionRequest), "parse returns one of the two"
            builder = await self._completions.prepare(body, deadline, scope)
        async with deadline.bound():
            answer = await self._preview(builder)
        await JSONResponse(answer)(scope, receive, send)
