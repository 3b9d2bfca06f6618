"""Send a span for each request to an OpenTelemetry collector. Needs the extra ``otel``; imported only when enabled."""

from time import time_ns
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagators.textmap import Getter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from jaxgen.server.middleware.context import RequestContext, context_of

OPERATIONS = {
    "/v1/completions": "text_completion",
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/embeddings": "embeddings",
}
"""The ``gen_ai.operation.name`` of the semantic conventions for generative AI, by path."""

ATTRIBUTES = {
    "method": "http.request.method",
    "path": "url.path",
    "status": "http.response.status_code",
    "error": "error.type",
    "model": "gen_ai.response.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "finish_reasons": "gen_ai.response.finish_reasons",
    "choices": "gen_ai.request.choice.count",
    "request_id": "http.response.header.x-request-id",
}
"""Names of OpenTelemetry's semantic conventions, by field of a RequestContext."""


def open_provider(endpoint: str, version: str) -> TracerProvider:
    """Return a provider that sends spans to ``endpoint`` by OTLP over HTTP, in batches, from its own thread.

    ``shutdown`` sends the rest.
    """
    provider = TracerProvider(resource=Resource.create({"service.name": "jaxgen", "service.version": version}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return provider


class TraceMiddleware:
    """Makes a span for each request but quiet ones: a child of the caller's, if it sends a W3C ``traceparent``."""

    def __init__(self, app: ASGIApp, *, provider: TracerProvider) -> None:
        self._app = app
        self._tracer = provider.get_tracer("jaxgen")
        self._propagator = TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or context_of(scope).is_quiet:
            await self._app(scope, receive, send)
            return
        caller = self._propagator.extract(Headers(scope=scope), getter=_HeaderGetter())
        context, begun = context_of(scope), time_ns()
        span = self._tracer.start_span(context.method, caller, SpanKind.SERVER, start_time=begun)
        try:
            await self._app(scope, receive, send)
        finally:
            _describe(span, context, begun)
            span.end()


class _HeaderGetter(Getter[Headers]):
    def get(self, carrier: Headers, key: str) -> list[str] | None:
        return carrier.getlist(key) or None

    def keys(self, carrier: Headers) -> list[str]:
        return carrier.keys()


def _describe(span: Span, context: RequestContext, begun: int) -> None:
    fields = context.fields()
    attributes: dict[str, Any] = {name: fields[field] for field, name in ATTRIBUTES.items() if field in fields}
    operation = OPERATIONS.get(context.path)
    if operation is not None:
        attributes |= {"gen_ai.operation.name": operation, "gen_ai.provider.name": "jaxgen"}
        span.update_name(" ".join(filter(None, (operation, fields.get("model")))))
    if "ttft_seconds" in fields:
        attributes["gen_ai.response.time_to_first_chunk"] = fields["ttft_seconds"]
        span.add_event("first token", timestamp=begun + int(fields["ttft_seconds"] * 1e9))
    span.set_attributes(attributes)
    if context.failed:
        span.set_status(StatusCode.ERROR)
