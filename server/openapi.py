"""Describe the API for programs: /openapi.json and /capabilities, made from the models that validate bodies."""

import re
from asyncio import to_thread
from collections.abc import Collection
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from jaxgen.client import EngineClient
from jaxgen.core.errors import ConfigError
from jaxgen.core.model_info import ModelInfo
from jaxgen.core.sampling_params import MAX_LOGPROBS
from jaxgen.server.api.embeddings import EmbeddingRequest
from jaxgen.server.api.tokenize import DetokenizeRequest, TokenizeRequest
from jaxgen.server.batches.endpoint import BatchRequest
from jaxgen.server.batches.upload import FileForm
from jaxgen.server.config import ServerConfig
from jaxgen.server.envelopes import OVERLOADED, of_messages
from jaxgen.server.middleware.auth import open_paths
from jaxgen.server.requests.answers import format_of
from jaxgen.server.requests.chat_template import Conversations
from jaxgen.server.resume.ticket import ASKING, FIELD
from jaxgen.server.schema import answers as shapes
from jaxgen.server.schema import message_answers as messages
from jaxgen.server.schema.base import Body, CompletionRequest
from jaxgen.server.schema.chat import ChatRequest
from jaxgen.server.schema.error_shapes import ERROR, MESSAGES_ERROR
from jaxgen.server.schema.messages import CountTokensRequest, MessagesRequest
from jaxgen.server.schema.responses import InputTokensRequest, ResponsesRequest

REFERENCE = "#/components/schemas/{model}"
LIMITED = ("limits", "queue", "connections", "batches", "responses", "availability")
"""The groups of the configuration that /capabilities shows as limits."""


@dataclass(frozen=True, slots=True)
class RouteDescription:
    """A route. ``answer``: model of its response; None: it is not JSON. ``body``: model of its body; None: no body.

    ``errors``: statuses of errors, in addition to the errors for callers without a key and for pages of other origins.
    ``streams``: the response may also be server-sent events.
    """

    method: str
    path: str
    summary: str
    answer: type[BaseModel] | None
    body: type[Body] | None = None
    errors: tuple[int, ...] = ()
    media: str = "application/json"
    """Content type of the body."""
    streams: bool = False
    resumes: bool = False
    """Whether a broken stream resumes after the event that Last-Event-ID names."""
    or_body: type[Body] | None = None
    """Model of the other bodies that it takes."""
    or_answer: type[BaseModel] | None = None
    """Model of its other answer, which the header ``anthropic-version`` asks for."""

    @property
    def answers(self) -> list[type[BaseModel]]:
        return [answer for answer in (self.answer, self.or_answer) if answer is not None]

    @property
    def bodies(self) -> list[type[Body]]:
        return [body for body in (self.body, self.or_body) if body is not None]


_BODY_ERRORS = (400, 404, 408, 413, 415, 503)
_GENERATING = (*_BODY_ERRORS, 500, 504)


def _generating(path: str, summary: str, answer: type[BaseModel], body: type[Body]) -> RouteDescription:
    resumes = "resume" in body.model_fields
    busy = OVERLOADED if of_messages(path) else 429
    errors = (*_GENERATING, busy, 409) if resumes else (*_GENERATING, busy)
    return RouteDescription(
        "POST", path, summary, answer, body, errors, streams="stream" in body.model_fields, resumes=resumes
    )


_PREVIEW = (*_BODY_ERRORS, 409, 429, 504)
_KEPT = (400, 404, 503)
_TOKENIZE = "Token ids of a text or a conversation."
ROUTES = (
    _generating("/v1/completions", "Continue prompts.", shapes.Completion, CompletionRequest),
    _generating("/v1/chat/completions", "Answer a conversation.", shapes.ChatCompletion, ChatRequest),
    _generating("/v1/responses", "Answer a conversation, as items.", shapes.Response, ResponsesRequest),
    RouteDescription(
        "POST",
        "/v1/responses/input_tokens",
        "The number of tokens of a prompt.",
        shapes.InputTokens,
        InputTokensRequest,
        (*_BODY_ERRORS, 429),
    ),
    RouteDescription("GET", "/v1/responses/{response_id}", "A stored response.", shapes.Response, errors=_KEPT),
    RouteDescription(
        "DELETE", "/v1/responses/{response_id}", "Delete a stored response.", shapes.DeletedResponse, errors=(404, 503)
    ),
    RouteDescription(
        "GET",
        "/v1/responses/{response_id}/input_items",
        "The input of a stored response.",
        shapes.InputItems,
        errors=_KEPT,
    ),
    RouteDescription(
        "POST",
        "/v1/responses/{response_id}/cancel",
        "Always 400, because no response runs in the background.",
        None,
        errors=_KEPT,
    ),
    _generating("/v1/messages", "Answer a conversation, in Anthropic's API.", messages.Message, MessagesRequest),
    RouteDescription(
        "POST",
        "/v1/messages/count_tokens",
        "The number of tokens of a prompt.",
        messages.CountedTokens,
        CountTokensRequest,
        (*_BODY_ERRORS, OVERLOADED),
    ),
    _generating("/v1/embeddings", "Vectors of texts.", shapes.Embeddings, EmbeddingRequest),
    RouteDescription(
        "POST",
        "/v1/latency",
        "The predicted latency of a request, which is not run.",
        shapes.PredictedLatency,
        CompletionRequest,
        _PREVIEW,
        or_body=ChatRequest,
    ),
    RouteDescription(
        "POST",
        "/v1/completions/render",
        "The token ids and parameters of a completion request, which is not run.",
        shapes.RenderedPrompts,
        CompletionRequest,
        _PREVIEW,
    ),
    RouteDescription(
        "POST",
        "/v1/chat/completions/render",
        "The token ids and parameters of a chat request, which is not run.",
        shapes.Rendered,
        ChatRequest,
        _PREVIEW,
    ),
    RouteDescription("POST", "/tokenize", _TOKENIZE, shapes.Tokens, TokenizeRequest, (*_BODY_ERRORS, 429)),
    RouteDescription(
        "POST", "/detokenize", "The text of tokens.", shapes.Text, DetokenizeRequest, (*_BODY_ERRORS, 429)
    ),
    RouteDescription(
        "POST",
        "/v1/files",
        "Store a file for batches.",
        shapes.File,
        FileForm,
        (400, 403, 404, 408, 413, 429, 503, 507),
        "multipart/form-data",
    ),
    RouteDescription("GET", "/v1/files", "The files of this API key.", shapes.Files, errors=(400, 404, 503)),
    RouteDescription("GET", "/v1/files/{file_id}", "Name, size and purpose of a file.", shapes.File, errors=(404, 503)),
    RouteDescription(
        "DELETE", "/v1/files/{file_id}", "Delete a file.", shapes.DeletedFile, errors=(404, 409, 503, 507)
    ),
    RouteDescription("GET", "/v1/files/{file_id}/content", "The content of a file.", None, errors=(404, 503)),
    RouteDescription(
        "POST",
        "/v1/batches",
        "Run the requests of a file as a batch.",
        shapes.Batch,
        BatchRequest,
        (*_BODY_ERRORS, 403, 507),
    ),
    RouteDescription("GET", "/v1/batches", "The batches of this API key.", shapes.Batches, errors=(400, 404, 503)),
    RouteDescription("GET", "/v1/batches/{batch_id}", "The state of a batch.", shapes.Batch, errors=(404, 503)),
    RouteDescription(
        "DELETE",
        "/v1/batches/{batch_id}",
        "Delete a batch that ended.",
        shapes.DeletedBatch,
        errors=(404, 409, 503, 507),
    ),
    RouteDescription(
        "POST", "/v1/batches/{batch_id}/cancel", "Stop a batch.", shapes.Batch, errors=(404, 409, 503, 507)
    ),
    RouteDescription(
        "GET", "/v1/models", "The model that is served.", shapes.Models, errors=(400,), or_answer=messages.Models
    ),
    RouteDescription(
        "GET", "/v1/models/{model}", "The model of this name.", shapes.Model, errors=(404,), or_answer=messages.Model
    ),
    RouteDescription(
        "GET", "/steps", "The engine's steps as a stream of events.", None, errors=(404, 429, 503), streams=True
    ),
    RouteDescription("GET", "/steps/history", "Samples of the last hour.", shapes.StepHistory, errors=(404,)),
    RouteDescription("GET", "/version", "The version of jaxgen.", shapes.Version),
    RouteDescription("GET", "/capabilities", "Routes, fields, limits and sampling defaults.", shapes.Object),
    RouteDescription("GET", "/openapi.json", "This document.", shapes.Object),
    RouteDescription("GET", "/health", "Whether the server accepts requests.", shapes.Status, errors=(503,)),
    RouteDescription("GET", "/ready", "Whether the server accepts requests, as /health.", shapes.Status, errors=(503,)),
    RouteDescription("GET", "/livez", "Whether the process is alive.", shapes.Status, errors=(503,)),
    RouteDescription("GET", "/metrics", "Prometheus metrics.", None),
)


def check_prefix(prefix: str) -> None:
    """Raise ConfigError for a prefix with which routes begin: whether it was stripped could not be told."""
    mine = [route.path for route in ROUTES if f"{route.path}/".startswith(f"{prefix}/")]
    if prefix and mine:
        raise ConfigError(f"--root-path {prefix} is where the server's own {mine[0]} begins: choose another prefix")


class Description:
    """Endpoints of both documents, which are made once, except the engine's digest, and of a short list of the
    routes."""

    def __init__(self, engine: EngineClient, config: ServerConfig, version: str, conversations: Conversations) -> None:
        self._engine = engine
        self._conversations = conversations
        keyed = config.access.asks_for_keys
        self._openapi = openapi_document(version, keys=keyed, open_paths=open_paths(config.access))
        self._capabilities = capabilities_document(engine.model, config)

    async def openapi(self, request: Request) -> Response:
        root: str = request.scope.get("root_path", "")  # where a proxy or another app has put this one
        return JSONResponse({**self._openapi, "servers": [{"url": root}]} if root else self._openapi)

    async def capabilities(self, _: Request) -> Response:
        identity = {"digest": self._engine.digest, "digest_parts": self._engine.digest_parts}
        stats = self._engine.stats()
        kernels = {name: asdict(choice) for name, choice in stats.kernel_choices.items()}
        # In a thread: a template that takes long would hold up the event loop until it has been probed.
        forms = await to_thread(self._conversations.findings)
        found = {"chat_template": forms, "kernels": kernels, "speculative_decoding": stats.speculation is not None}
        return JSONResponse({**self._capabilities, **found, **identity})

    async def index(self, _: Request) -> Response:
        return JSONResponse({"routes": [f"{route.method} {route.path}" for route in ROUTES]})


def openapi_document(version: str, *, keys: bool, open_paths: Collection[str]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document. ``keys``: whether callers need an API key, except for ``open_paths``."""
    references, definitions = _schemas()
    schemas = {**definitions.get("$defs", {}), "Error": ERROR, "MessagesError": MESSAGES_ERROR}
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        bodies = [references[model, "validation"] for model in route.bodies]
        body = {"anyOf": bodies} if route.or_body else next(iter(bodies), None)
        of_answers = [references[model, "validation"] for model in route.answers]
        answer = {"anyOf": of_answers} if route.or_answer else next(iter(of_answers), None)
        errors = (*route.errors, 403, 401) if keys and route.path not in open_paths else (*route.errors, 403)
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, body, answer, errors)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "jaxgen", "version": version},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


@cache
def _schemas() -> tuple[Any, dict[str, Any]]:
    """Return pydantic's references and definitions of all bodies and answers, which take longer to make than an app."""
    shown = [model for route in ROUTES for model in (*route.bodies, *route.answers)]
    return models_json_schema([(model, "validation") for model in shown], ref_template=REFERENCE)


def capabilities_document(model: ModelInfo, config: ServerConfig) -> dict[str, Any]:
    """Return what the model and server support: routes with the fields of their bodies, service classes and limits."""
    form = format_of(model, config.answers)
    limits = {name: value for group in LIMITED for name, value in asdict(getattr(config, group)).items()}
    del limits["batch_dir"]  # a path of the server's machine
    limits |= {"allowed_hosts": config.access.allowed_hosts, "forwarded_allow_ips": config.proxy.forwarded_allow_ips}
    return {
        "model": model.name,
        "embedded": model.embedded,
        "generates": model.generates,
        "conversations": model.chat is not None,
        "tool_call_parser": form.tools,
        "reasoning_parser": form.reasoning,
        "service_classes": [asdict(service) for service in config.service_classes],
        "sampling_defaults": asdict(model.defaults),
        "embeddings": None if model.embedding is None else asdict(model.embedding),
        "routes": {
            f"{route.method} {route.path}": sorted({name for body in route.bodies for name in body.model_fields})
            for route in ROUTES
        },
        "resumable_streams": [route.path for route in ROUTES if route.resumes],
        "limits": {**limits, "max_model_len": model.max_model_len, "max_logprobs": MAX_LOGPROBS},
    }


def _operation(route: RouteDescription, body: Any, answer: Any, errors: tuple[int, ...]) -> dict[str, Any]:
    # Others answer with Anthropic's errors too, to callers who send anthropic-version.
    shape = "MessagesError" if of_messages(route.path) else "Error"
    error = {"application/json": {"schema": {"$ref": REFERENCE.format(model=shape)}}}
    content = {"application/json": {"schema": answer}} if answer else {}
    if route.streams:
        content["text/event-stream"] = {}  # OpenAPI 3.1 has no schema for events
    result: dict[str, Any] = {
        "summary": route.summary,
        "responses": {
            "200": {"description": "The response.", **({"content": content} if content else {})},
            **{str(status): {"description": "Refused or failed.", "content": error} for status in errors},
        },
    }
    if body is not None:
        result["requestBody"] = {"required": True, "content": {route.media: {"schema": body}}}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    if route.resumes:
        kinds = {FIELD: "string", ASKING: "boolean"}
        parameters += [
            {"name": name, "in": "header", "required": False, "schema": {"type": kind}} for name, kind in kinds.items()
        ]
    if parameters:
        result["parameters"] = parameters
    return result
