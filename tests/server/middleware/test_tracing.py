"""Spans of requests: their parents, names and attributes, and what the flag asks for."""

import asyncio
import gzip
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from starlette.middleware import Middleware
from starlette.testclient import TestClient

from jaxgen.core.request import Request
from jaxgen.server.app import create_app
from jaxgen.server.cli import main
from jaxgen.server.middleware.tracing import TraceMiddleware, open_provider
from tests.support.fakes import FakeEngine
from tests.support.server_app import TOKENIZER, body, fake_engine

SECRET = "my secret diary"


@contextmanager
def traced(engine: FakeEngine) -> Iterator[tuple[TestClient, InMemorySpanExporter]]:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    app = create_app(engine, tracing=Middleware(TraceMiddleware, provider=provider))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client, exporter


def only(exporter: InMemorySpanExporter) -> tuple[ReadableSpan, dict[str, Any]]:
    (span,) = exporter.get_finished_spans()
    return span, dict(span.attributes or {})


def test_a_completion_is_a_span() -> None:
    with traced(fake_engine(cached=2)) as (client, exporter):
        client.post("/v1/completions", json=body(prompt=SECRET, n=2, max_tokens=5), headers={"x-request-id": "mine"})
    span, attributes = only(exporter)
    ttft = attributes.pop("gen_ai.response.time_to_first_chunk")
    assert attributes == {
        "http.request.method": "POST",
        "url.path": "/v1/completions",
        "http.response.status_code": 200,
        "http.response.header.x-request-id": "mine",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "jaxgen",
        "gen_ai.response.model": "fake/model-1",
        "gen_ai.request.choice.count": 2,
        "gen_ai.usage.input_tokens": len(TOKENIZER.encode(SECRET)),
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.output_tokens": 10,
        "gen_ai.response.finish_reasons": ("length",),
    }
    assert (span.name, span.kind, span.parent) == ("text_completion fake/model-1", SpanKind.SERVER, None)
    assert span.status.status_code is StatusCode.UNSET
    (event,) = span.events
    assert event.name == "first token"
    assert span.start_time is not None
    assert span.end_time is not None
    assert event.timestamp - span.start_time == int(ttft * 1e9)
    assert span.start_time < event.timestamp <= span.end_time
    assert "secret" not in span.to_json()


def test_embeddings_are_a_span_too() -> None:
    with traced(fake_engine()) as (client, exporter):
        client.post("/v1/embeddings", json={"model": "fake/model-1", "input": SECRET})
    span, attributes = only(exporter)
    assert span.name == "embeddings fake/model-1"
    assert attributes["gen_ai.operation.name"] == "embeddings"
    assert attributes["gen_ai.usage.input_tokens"] == len(TOKENIZER.encode(SECRET))
    assert "gen_ai.usage.output_tokens" not in attributes
    assert "secret" not in span.to_json()


def test_the_parent_is_the_callers_span() -> None:
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with traced(fake_engine()) as (client, exporter):
        client.post("/v1/completions", json=body(), headers={"traceparent": f"00-{trace}-{parent}-01"})
        client.post("/v1/completions", json=body(), headers={"traceparent": "nonsense"})
    child, orphan = exporter.get_finished_spans()
    assert child.parent is not None
    assert child.context is not None
    assert (f"{child.context.trace_id:032x}", f"{child.parent.span_id:016x}") == (trace, parent)
    assert orphan.parent is None


@pytest.mark.parametrize(("stream", "status"), [(False, 500), (True, 200)])
def test_failures_of_the_server_are_marked(stream: bool, status: int) -> None:
    async def pace(request: Request, index: int) -> None:
        if index == 2:
            await asyncio.sleep(0.05)  # the stream has begun then
            raise KeyError(SECRET)

    with traced(fake_engine(pace=pace)) as (client, exporter):
        client.post("/v1/completions", json=body(stream=stream))
    span, attributes = only(exporter)
    assert span.status.status_code is StatusCode.ERROR
    assert (attributes["http.response.status_code"], attributes["error.type"]) == (status, "server_error")
    assert "secret" not in span.to_json()


def test_refusals_are_the_callers_and_probes_have_no_span() -> None:
    with traced(fake_engine()) as (client, exporter):
        for path in ("/health", "/ready", "/livez", "/metrics"):
            client.get(path)
        client.post("/v1/chat/completions", json={"model": "other"})
    span, attributes = only(exporter)
    assert (span.name, span.status.status_code) == ("chat", StatusCode.UNSET)
    assert (attributes["http.response.status_code"], attributes["gen_ai.operation.name"]) == (404, "chat")


def test_spans_reach_a_collector() -> None:
    received: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        provider = open_provider(f"http://127.0.0.1:{collector.server_port}/v1/traces", "1.2.3")
        app = create_app(fake_engine(), tracing=Middleware(TraceMiddleware, provider=provider))
        with TestClient(app) as client:
            client.post("/v1/completions", json=body())
        provider.shutdown()
        collector.shutdown()
        thread.join(120)
    (path, content), *others = received
    assert (path, others) == ("/v1/traces", [])
    (resource,) = ExportTraceServiceRequest.FromString(gunzip(content)).resource_spans
    assert "jaxgen" in [attribute.value.string_value for attribute in resource.resource.attributes]
    assert resource.scope_spans[0].spans[0].name == "text_completion fake/model-1"


def gunzip(content: bytes) -> bytes:
    return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content


def test_the_flag_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--otlp-traces-endpoint", "collector:4317"]) == 2
    assert "--otlp-traces-endpoint 'collector:4317' must be a URL" in capsys.readouterr().err
    assert main(["serve", "--otlp-traces-endpoint", "me:secret@collector:4317"]) == 2
    assert "--otlp-traces-endpoint 'collector:4317' must be a URL" in capsys.readouterr().err
    monkeypatch.delitem(sys.modules, "jaxgen.server.middleware.tracing", raising=False)
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert main(["serve", "--otlp-traces-endpoint", "http://127.0.0.1:1/v1/traces"]) == 2
    assert capsys.readouterr().err.strip() == (
        "jaxgen serve: --otlp-traces-endpoint needs opentelemetry: pip install -e '.[otel]' in the checkout brings it"
    )
