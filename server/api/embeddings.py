"""POST /v1/embeddings: embed texts as vectors of length 1."""

import logging
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal
from uuid import uuid4

import numpy as np
from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from jaxgen.client import EngineClient
from jaxgen.core.limits import check_dimensions
from jaxgen.core.model_info import EmbeddingFormat, Pooling
from jaxgen.core.pooling import unit_vector
from jaxgen.core.request import FinishReason, Request, TokenEvent
from jaxgen.core.service_class import ServiceClass
from jaxgen.server.api.endpoint import AppState, ComputingEndpoint
from jaxgen.server.errors import bad_request, refusals
from jaxgen.server.generation.choice import given_up, latency_json
from jaxgen.server.generation.generation import Generation
from jaxgen.server.middleware.context import RequestContext, context_of
from jaxgen.server.middleware.deadline import Deadline
from jaxgen.server.requests.engine_requests import embedding_request
from jaxgen.server.requests.params import tokens_to_keep
from jaxgen.server.requests.prompts import Prompt
from jaxgen.server.requests.service_tier import service_class
from jaxgen.server.schema.base import ComputingFields, prompt_kind
from jaxgen.server.schema.base import Prompt as PromptField
from jaxgen.server.schema.integers import Integer
from jaxgen.server.schema.parsing import parse_body

logger = logging.getLogger(__name__)


class EmbeddingRequest(ComputingFields):
    """The body of /v1/embeddings: OpenAI's fields, and ``cache_salt``, ``return_latency`` and
    ``truncate_prompt_tokens``."""

    input: PromptField | None = None
    dimensions: Integer | None = None
    encoding_format: Literal["float", "base64"] | None = None
    truncate_prompt_tokens: Integer | None = None


class EmbeddingsEndpoint(ComputingEndpoint[EmbeddingRequest]):
    def __init__(self, services: AppState) -> None:
        super().__init__(services)
        self._warned = False

    def parse(self, data: dict[str, Any]) -> EmbeddingRequest:
        return parse_body(EmbeddingRequest, data, self._services.config.limits)

    async def _respond(
        self, body: EmbeddingRequest, deadline: Deadline, scope: Scope, receive: Receive, send: Send
    ) -> None:
        pooling, services = self._format(body).pooling, self._services
        self._warn_of_ids(body.input)
        keep = tokens_to_keep(body.truncate_prompt_tokens, 0, self._engine.model)
        async with deadline.bound():
            prompts = await services.prompts.read_all(body.input, "input", keep)
        context = context_of(scope)
        # Embeddings have no time between tokens, and no input is refused because of other inputs before it.
        service = service_class(None, services.config.service_classes)
        service = replace(service, inter_token_seconds=None, serve_late=True)
        builder = context.answer = _Embeddings(self._engine, prompts, pooling, service, body, context)
        async with Generation(
            self._engine, builder.vectors, services.queue, services.metrics, context, deadline
        ) as generation:
            await generation.finish()
        await Response(builder.full_response(), media_type="application/json")(scope, receive, send)

    def _warn_of_ids(self, given: PromptField | None) -> None:
        """Log once that a caller sends token ids: some libraries send those of OpenAI's tokenizer by default."""
        if not self._warned and prompt_kind(given) in (":tokens", ":token_lists"):
            self._warned = True
            logger.warning(
                "the input of a request for embeddings is token ids: they must be of this model's tokenizer. "
                "LangChain's OpenAIEmbeddings sends ids of OpenAI's, unless it has check_embedding_ctx_length=False"
            )

    def _format(self, body: EmbeddingRequest) -> EmbeddingFormat:
        """Return the model's format. Raises ApiError 400 where the model cannot give the requested embeddings."""
        embedding = self._engine.model.embedding
        if embedding is None:
            raise bad_request("This model gives no embeddings.", "model")
        if body.dimensions is not None:
            with refusals():
                check_dimensions(body.dimensions, embedding.size)
        return embedding


class _Embeddings:
    """The vectors of one request, and the response made from them."""

    failed = False
    """Always False: no stream, so an error has its own status."""

    def __init__(
        self,
        engine: EngineClient,
        prompts: Sequence[Prompt],
        pooling: Pooling,
        service: ServiceClass,
        body: EmbeddingRequest,
        context: RequestContext,
    ) -> None:
        self._engine = engine
        self._prompts = prompts
        name, salt, latency = f"embd-{uuid4().hex}", body.cache_salt, bool(body.return_latency)
        requests = [
            embedding_request(f"{name}-{i}", prompt, pooling, service, context, cache_salt=salt, latency=latency)
            for i, prompt in enumerate(prompts)
        ]
        self.vectors = [_Vector(i, request, body) for i, request in enumerate(requests)]

    def full_response(self) -> bytes:
        """Return the response as JSON, when all vectors are complete."""
        num_tokens = self._num_tokens()
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        head = to_json({"object": "list", "model": self._engine.model.name, "usage": usage})
        return head[:-1] + b',"data":[' + b",".join(vector.entry for vector in self.vectors) + b"]}"

    def summary(self) -> dict[str, Any]:
        """Return the fields for the log, without any text."""
        return {
            "model": self._engine.model.name,
            "prompt_tokens": self._num_tokens(),
            "embeddings": len(self.vectors),
        }

    def prompt_texts(self) -> list[str]:
        """Return the decoded text of each prompt."""
        return [self._engine.tokenizer.decode(prompt.tokens) for prompt in self._prompts]

    def _num_tokens(self) -> int:
        return sum(len(prompt.tokens) for prompt in self._prompts)


class _Vector:
    """One embedding. ``entry``: its JSON in the response.

    It is encoded when its event comes: thousands at once would block the event loop.
    """

    def __init__(self, index: int, request: Request, body: EmbeddingRequest) -> None:
        self._index = index
        self.request = request
        self.finish_reason: str | None = None
        self.entry = b""
        self._dimensions = body.dimensions
        self._base64 = body.encoding_format == "base64"

    @property
    def has_updates(self) -> bool:
        return self.finish_reason is not None

    def feed(self, event: TokenEvent) -> None:
        """Take the embedding. Raises ApiError when the engine failed on the request or aborted it."""
        if event.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
            raise given_up(event)
        if event.embedding is None or event.finish_reason is None:
            raise RuntimeError(f"the engine sent no embedding for {self.request.request_id}")
        vector = unit_vector(event.embedding, self._dimensions).astype(np.dtype("<f4"))
        shown = b64encode(vector.tobytes()).decode("ascii") if self._base64 else vector.tolist()
        extras = latency_json(event.latency, event.cached_tokens or 0) if self.request.latency else {}
        self.entry = to_json({"object": "embedding", "index": self._index, "embedding": shown, **extras})
        self.finish_reason = event.finish_reason.value
