"""Probes, draining, models, unknown routes, wrong methods, and being mounted in another application."""

import asyncio
import threading
from typing import Any

import httpx2
import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from jaxgen.client import EngineStatus
from jaxgen.core.errors import ConfigError
from jaxgen.core.request import Request
from jaxgen.server.app import create_app
from jaxgen.server.config import Access, Proxy, ServerConfig
from jaxgen.server.limits import Availability, Limits
from tests.server.api.test_chat import chat_engine
from tests.server.middleware.test_auth import KEYS
from tests.support.fakes import MODEL, says
from tests.support.live_server import serve
from tests.support.server_app import body, byte_by_byte, client_of, error_of, fake_engine


def test_probes_follow_the_engine() -> None:
    engine = fake_engine()
    with client_of(engine, ServerConfig(availability=Availability(stall_limit_s=60))) as client:
        states = [
            (EngineStatus("starting"), 503, "starting"),
            (EngineStatus("ready"), 200, ""),
            (EngineStatus("ready", stalled_seconds=59.0), 200, ""),
            (EngineStatus("ready", stalled_seconds=61.0), 503, "61 s"),
            (EngineStatus("dead", "out of memory"), 503, "dead; the server's log says why"),
        ]
        for state, status, reason in states:
            engine.state = state
            for path in ("/health", "/ready", "/livez"):
                answer = client.get(path)
                assert (answer.status_code, reason in answer.text) == (status, True), (path, state)
                assert client.head(path).status_code == status


@pytest.mark.parametrize(("state", "retry"), [("starting", True), ("dead", False)])
def test_no_completions_unless_the_engine_runs(state: Any, retry: bool) -> None:
    engine = fake_engine(state=EngineStatus(state))
    with client_of(engine) as client:
        answer = client.post("/v1/completions", json=body())
    assert answer.status_code == 503
    assert ("retry-after" in answer.headers) == retry
    error_of(answer.json())
    assert engine.requests == []


def test_draining_lets_running_requests_finish() -> None:
    running, go_on = threading.Event(), threading.Event()

    async def pace(request: Request, index: int) -> None:
        running.set()
        while not go_on.is_set():
            await asyncio.sleep(0.001)

    app = create_app(
        fake_engine(reply=says(byte_by_byte("Hello")), pace=pace),
        ServerConfig(availability=Availability(retry_after_s=7)),
    )
    answers = []
    with serve(app) as url:
        thread = threading.Thread(
            target=lambda: answers.append(httpx2.post(f"{url}/v1/completions", json=body(), timeout=60))
        )
        thread.start()
        assert running.wait(120)
        assert app.state.lifecycle.num_requests == 1
        app.state.lifecycle.draining = True
        refused = httpx2.post(f"{url}/v1/completions", json=body())
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "7")
        error_of(refused.json())
        for path, status in (("/ready", 503), ("/health", 503), ("/livez", 200)):
            assert httpx2.get(f"{url}{path}").status_code == status
        go_on.set()
        thread.join(120)
    assert answers[0].json()["choices"][0]["text"] == "Hello"
    assert app.state.lifecycle.num_requests == 0


def test_models() -> None:
    with client_of(fake_engine()) as client:
        answer = client.get("/v1/models").json()
        assert answer["object"] == "list"
        assert [(model["id"], model["object"], model["max_model_len"]) for model in answer["data"]] == [
            (MODEL, "model", 128)
        ]
        assert client.get("/v1/models/", follow_redirects=False).json() == answer
        for name in (MODEL, f"{MODEL}/", "fake%2Fmodel-1"):
            assert client.get(f"/v1/models/{name}", follow_redirects=False).json() == answer["data"][0]
        for name in ("gpt-4", "fake", f"{MODEL}//", "/"):
            missing = client.get(f"/v1/models/{name}")
            assert missing.status_code == 404
            assert error_of(missing.json())["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "Say"}),
        ("/v1/completions", {"prompt": "Say", "model": None}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/embeddings", {"input": "Say"}),
        ("/tokenize", {"prompt": "Say"}),
        ("/detokenize", {"tokens": [2]}),
    ],
)
def test_a_body_that_names_no_model_gets_the_one_that_is_served(path: str, fields: dict[str, Any]) -> None:
    engine = fake_engine() if path == "/v1/embeddings" else chat_engine()
    with client_of(engine) as client:
        answer = client.post(path, json=fields)
        assert answer.status_code == 200, answer.text
        assert answer.json().get("model", MODEL) == MODEL
        assert client.post(path, json={**fields, "model": "another"}).status_code == 404


def test_the_openai_client_lists_models() -> None:
    with serve(create_app(fake_engine())) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x") as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL


@pytest.mark.parametrize("path", ["/v1", "/v1/chat", "/v1/completions//", "/healthz", "/v1/chat/"])
def test_unknown_routes(path: str) -> None:
    with client_of(fake_engine()) as client:
        for method in ("GET", "POST"):
            answer = client.request(method, path, follow_redirects=False)
            assert answer.status_code == 404
            error_of(answer.json())


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("//v1/chat/completions", "/v1/chat/completions"),
        ("/v1//completions", "/v1/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/completions", "/v1/completions"),
        ("/responses/", "/v1/responses"),
        ("/v1/tokenize", "/tokenize"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/embedding", "/v1/embeddings"),
        ("/v1", "/v1/chat/completions"),
        ("/v1/chat", "/v1/chat/completions"),
        ("/batches/batch_1/cancel", "/v1/batches/batch_1/cancel"),
        ("/api/generate", None),
        ("/" + "v1/" * 1000, None),
        ("/", None),
    ],
)
@pytest.mark.parametrize("prefix", ["", "/ai"])
def test_a_path_that_is_none_is_told_the_nearest(path: str, near: str | None, prefix: str) -> None:
    with client_of(fake_engine(), ServerConfig(proxy=Proxy(root_path=prefix), ui=False)) as client:
        answer = client.post(f"http://testserver{prefix}{path}")
    if path == "/":
        assert answer.status_code == 405
        return
    assert answer.status_code == 404
    says = "There is no such route" + ("." if near is None else f"; the nearest is {prefix}{near}.")
    assert error_of(answer.json())["message"] == says


def test_the_nearest_route_takes_the_method() -> None:
    with client_of(fake_engine()) as client:
        assert "nearest is /v1/models/x" in client.get("/models/x").text
        assert "nearest is /health." in client.get("/healthz").text
        assert "nearest is /v1/models." in client.get("/v1").text
        assert "nearest is /v1/models." in client.get("/v1/").text
        assert "nearest is /v1/chat/completions." in client.post("/v1").text


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/completions", {"POST"}),
        ("OPTIONS", "/v1/completions", {"POST"}),
        ("GET", "/v1/chat/completions", {"POST"}),
        ("DELETE", "/v1/models", {"GET", "HEAD"}),
        ("POST", "/v1/models/x", {"GET", "HEAD"}),
        ("POST", "/health", {"GET", "HEAD"}),
        ("PUT", "/ready", {"GET", "HEAD"}),
        ("PUT", "/livez", {"GET", "HEAD"}),
        ("POST", "/metrics", {"GET", "HEAD"}),
    ],
)
def test_wrong_methods(method: str, path: str, allowed: set[str]) -> None:
    with client_of(fake_engine()) as client:
        answer = client.request(method, path)
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == allowed
    error_of(answer.json())


def test_configuration_refuses_nonsense_by_name() -> None:
    with pytest.raises(ConfigError, match="api_keys"):
        ServerConfig(access=Access(api_keys=("",)))
    with pytest.raises(ConfigError, match="max_body_bytes must be more than 0, not 0"):
        ServerConfig(limits=Limits(max_body_bytes=0))


def host_app(config: ServerConfig) -> Starlette:
    def home(_: HttpRequest) -> PlainTextResponse:
        return PlainTextResponse("host")

    app = create_app(fake_engine(reply=says(byte_by_byte("Hello"))), config)
    return Starlette(routes=[Route("/health", home), Mount("/llm", app=app)])


def test_mounted_in_a_host_application() -> None:
    with serve(host_app(KEYS)) as url:
        with openai.OpenAI(base_url=f"{url}/llm/v1", api_key="first-key", max_retries=0) as client:
            assert client.completions.create(model=MODEL, prompt="Say").choices[0].text == "Hello"
            stream = client.completions.create(model=MODEL, prompt="Say", stream=True)
            assert "".join(chunk.choices[0].text for chunk in stream) == "Hello"
            assert client.models.retrieve(MODEL).id == MODEL
        assert httpx2.get(f"{url}/health").text == "host"
        assert httpx2.get(f"{url}/llm/health").status_code == 200
        assert httpx2.get(f"{url}/llm/metrics").status_code == 401
        missing = httpx2.get(f"{url}/llm/nowhere", headers={"authorization": "Bearer first-key"})
        assert missing.status_code == 404
        error_of(missing.json())


def test_mounted_errors_keep_their_shape() -> None:
    with TestClient(host_app(ServerConfig()), raise_server_exceptions=False) as client:
        assert client.post("/llm/v1/completions", content=b"{").status_code == 400
        wrong = client.get("/llm/v1/completions")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        error_of(wrong.json())
