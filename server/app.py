"""Build the ASGI app: routes, middleware and error handlers around an engine."""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from jaxgen.client import EngineClient
from jaxgen.core.errors import (
    EngineDeadError,
    HelperLostError,
    RequestRefusedError,
    TooCostlyError,
    TooMuchWaitsError,
)
from jaxgen.server.api.body import Bodies
from jaxgen.server.api.chat import ChatEndpoint
from jaxgen.server.api.completions import CompletionsEndpoint
from jaxgen.server.api.embeddings import EmbeddingsEndpoint
from jaxgen.server.api.endpoint import AppState
from jaxgen.server.api.models import Models
from jaxgen.server.api.probes import Probes, metrics_route, show_version
from jaxgen.server.api.tokenize import TokensEndpoint
from jaxgen.server.batches.app import Batches
from jaxgen.server.config import DEFAULT_CONFIG, Access, ServerConfig
from jaxgen.server.errors import ApiError
from jaxgen.server.generation.queue_limit import QueueLimit
from jaxgen.server.messages.endpoint import CountTokensEndpoint, MessagesEndpoint
from jaxgen.server.metrics.metrics import Metrics
from jaxgen.server.middleware.access_log import PROBES, AccessLogMiddleware
from jaxgen.server.middleware.auth import ApiKeyMiddleware, ApiKeys, open_paths
from jaxgen.server.middleware.body_timeout import BodyTimeoutMiddleware
from jaxgen.server.middleware.cors import OriginMiddleware, cors_middleware
from jaxgen.server.middleware.errors import (
    UnexpectedErrorMiddleware,
    api_error,
    client_left,
    http_exception,
    unexpected_error,
)
from jaxgen.server.middleware.hosts import HostMiddleware
from jaxgen.server.middleware.lifecycle import Lifecycle, LifecycleMiddleware
from jaxgen.server.middleware.request_id import RequestIdMiddleware
from jaxgen.server.middleware.root_path import RootPathMiddleware
from jaxgen.server.middleware.trailing_slash import TrailingSlashMiddleware
from jaxgen.server.openapi import Description, check_prefix
from jaxgen.server.preview.latency import LatencyEndpoint
from jaxgen.server.preview.render import RenderEndpoint
from jaxgen.server.requests.answers import AnswerReader
from jaxgen.server.requests.chat_template import Conversations
from jaxgen.server.requests.prompts import PromptReader
from jaxgen.server.responses.endpoint import InputTokensEndpoint, ResponsesEndpoint
from jaxgen.server.responses.store import ResponseStore
from jaxgen.server.responses.stored import StoredResponses
from jaxgen.server.resume.resumption import Identities
from jaxgen.server.resume.secrets import Secrets
from jaxgen.server.step_feed.app import Steps
from jaxgen.server.web_ui.site_routes import page_routes


def create_app(
    engine: EngineClient, config: ServerConfig = DEFAULT_CONFIG, *, tracing: Middleware | None = None
) -> Starlette:
    """Return the OpenAI-compatible ASGI app of ``engine``, which may be mounted inside another app.

    It starts and stops only batches and the samples of ``/steps/history``: the engine belongs to the caller. Lifespan
    events are needed only to resume unfinished batches of an earlier process, and for samples before the first request.
    The caller drains the app by ``app.state.lifecycle``, and has changed keys
    read by ``app.state.keys``. ``tracing``: middleware that sees each request and its record. Raises ConfigError where
    ``config`` names a directory or a file that cannot be used.
    """
    lifecycle = Lifecycle(engine, config.availability)
    metrics = Metrics(engine, [service for service in config.service_classes if service.has_targets])
    probes = Probes(lifecycle)
    models = Models(engine)
    prompts = PromptReader(engine, config.limits, config.queue)
    prompts.register(metrics.registry)
    conversations = Conversations(engine, prompts)
    services = AppState(
        engine,
        config,
        lifecycle,
        QueueLimit(engine, config.queue, config.availability.retry_after_s),
        metrics,
        prompts,
        conversations,
        AnswerReader(engine, config.answers),
        Bodies(config.limits.max_body_bytes, config.connections.max_arriving_bytes),
        Identities(config.answers.seed),
        Secrets(config.answers.stream_secret),
    )
    tokens = TokensEndpoint(services)
    stored = config.responses
    responses = ResponseStore(stored.max_stored_responses, stored.max_response_bytes, stored.response_lifetime_s)
    counted = Middleware(LifecycleMiddleware, lifecycle=lifecycle)
    batches = Batches(services)
    description = Description(engine, config, version("jaxgen"), conversations)
    keys = ApiKeys(config.access.api_keys, config.access.api_key_file)
    steps = Steps(services, keyed=keys.asked_for)
    check_prefix(config.proxy.root_path)
    page = page_routes() if config.ui else [Route("/", description.index)]
    app = Starlette(
        routes=[
            Route("/v1/completions", CompletionsEndpoint(services), methods=["POST"]),
            Route("/v1/chat/completions", ChatEndpoint(services), methods=["POST"]),
            Route("/v1/responses", ResponsesEndpoint(services, responses), methods=["POST"]),
            Route(
                "/v1/responses/input_tokens",
                InputTokensEndpoint(services, responses).count,
                methods=["POST"],
                middleware=[counted],
            ),
            *StoredResponses(responses).routes(counted),
            Route("/v1/messages", MessagesEndpoint(services), methods=["POST"]),
            Route(
                "/v1/messages/count_tokens",
                CountTokensEndpoint(services).count,
                methods=["POST"],
                middleware=[counted],
            ),
            Route("/v1/embeddings", EmbeddingsEndpoint(services), methods=["POST"]),
            Route("/v1/latency", LatencyEndpoint(services), methods=["POST"]),
            Route("/v1/completions/render", RenderEndpoint(services, chat=False), methods=["POST"]),
            Route("/v1/chat/completions/render", RenderEndpoint(services, chat=True), methods=["POST"]),
            Route("/tokenize", tokens.tokenize, methods=["POST"], middleware=[counted]),
            Route("/detokenize", tokens.detokenize, methods=["POST"], middleware=[counted]),
            *batches.routes,
            *steps.routes,
            Route("/v1/models", models.list),
            Route("/v1/models/{model:path}", models.get),
            Route("/version", show_version),
            Route("/capabilities", description.capabilities),
            Route("/openapi.json", description.openapi),
            Route("/health", probes.ready),
            Route("/ready", probes.ready),
            Route("/livez", probes.live),
            Route("/metrics", metrics_route(metrics)),
            *page,
        ],
        middleware=[
            *steps.middleware,
            *_middleware(config, keys, metrics, tracing, frozenset(route.path for route in page)),
        ],
        exception_handlers={
            ApiError: api_error,
            RequestRefusedError: api_error,
            EngineDeadError: api_error,
            TooMuchWaitsError: api_error,
            TooCostlyError: api_error,
            HelperLostError: api_error,
            ClientDisconnect: client_left,
            HTTPException: http_exception,
            Exception: unexpected_error,
        },
        lifespan=_lifespan(batches, steps),
    )
    # A redirect would drop the body; TrailingSlashMiddleware takes the slash from the end of a path.
    app.router.redirect_slashes = False
    app.state.lifecycle = lifecycle
    app.state.keys = keys
    app.state.queue = services.queue
    app.state.config = config
    return app


def _lifespan(batches: Batches, steps: Steps) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        with steps.sampled():
            async with batches.lifespan(app):
                yield

    return lifespan


def _page_checks(access: Access, named: Collection[str]) -> list[Middleware]:
    """Return what keeps pages of other origins out. ``named``: origins that may call."""
    return [Middleware(HostMiddleware, allowed=access.allowed_hosts), Middleware(OriginMiddleware, named=named)]


def _middleware(
    config: ServerConfig, keys: ApiKeys, metrics: Metrics, tracing: Middleware | None, page: frozenset[str]
) -> list[Middleware]:
    """Return the middleware, the outermost first. ``page``: paths of files for browsers, which hold no data.

    A preflight request has no API key, so CORS is before keys. Every refusal must have an id, and the headers that let
    a page read it.
    """
    access, log, prefix = config.access, config.log, config.proxy.root_path
    named = () if access.cors is None else access.cors.origins
    return [
        *([Middleware(RootPathMiddleware, prefix=prefix, kept=page)] if prefix else []),
        Middleware(TrailingSlashMiddleware),
        Middleware(RequestIdMiddleware, quiet=PROBES | page),
        Middleware(
            AccessLogMiddleware, metrics=metrics, prompt_characters=log.max_log_len if log.log_prompts else None
        ),
        *([] if tracing is None else [tracing]),
        *([] if access.cors is None else [cors_middleware(access.cors)]),
        # Where callers need API keys, a page without a key is refused anyway.
        *(_page_checks(access, named) if access.check_origin and not keys.asked_for else []),
        Middleware(ApiKeyMiddleware, keys=keys, open_paths=open_paths(access) | page),
        Middleware(BodyTimeoutMiddleware, seconds=config.connections.body_timeout_s),
        Middleware(UnexpectedErrorMiddleware),
    ]
