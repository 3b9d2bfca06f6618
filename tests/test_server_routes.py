"""Everything around completions: probes, keys, models, metrics, unknown routes, and being mounted in another app."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from jaxgen.config import ConfigError
from jaxgen.request import EngineStatus, ModelInfo, Request
from jaxgen.stats import EngineStats
from server.app import create_app
from server.config import ServerConfig
from tests.fakes import MODEL, says
from tests.live_server import serve
from tests.server_app import TOKENIZER, body, byte_by_byte, client_of, error_of, fake_engine

KEYS = ServerConfig(api_keys=("first-key", "clé-2"))


def test_health_and_ready_follow_the_engine() -> None:
    engine = fake_engine()
    with client_of(engine, ServerConfig(stall_limit_s=60)) as client:
        states = [
            (EngineStatus("starting"), 503, "starting"),
            (EngineStatus("ready"), 200, ""),
            (EngineStatus("ready", stalled_seconds=59.0), 200, ""),
            (EngineStatus("ready", stalled_seconds=61.0), 503, "61 s"),
            (EngineStatus("dead", "out of memory"), 503, "dead: out of memory"),
        ]
        for state, status, reason in states:
            engine.state = state
            for path in ("/health", "/ready"):
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

    app = create_app(fake_engine(reply=says(byte_by_byte("Hello")), pace=pace), ServerConfig(retry_after_s=7))
    answers = []
    with serve(app) as url:
        thread = threading.Thread(
            target=lambda: answers.append(httpx2.post(f"{url}/v1/completions", json=body(), timeout=60))
        )
        thread.start()
        assert running.wait(30)
        assert app.state.lifecycle.num_requests == 1
        app.state.lifecycle.draining = True
        refused = httpx2.post(f"{url}/v1/completions", json=body())
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "7")
        error_of(refused.json())
        assert httpx2.get(f"{url}/ready").status_code == 503
        assert httpx2.get(f"{url}/health").status_code == 200
        go_on.set()
        thread.join(30)
    assert answers[0].json()["choices"][0]["text"] == "Hello"
    assert app.state.lifecycle.num_requests == 0


def test_models() -> None:
    with client_of(fake_engine()) as client:
        answer = client.get("/v1/models").json()
        assert answer["object"] == "list"
        assert [(model["id"], model["object"], model["max_model_len"]) for model in answer["data"]] == [
            (MODEL, "model", 128)
        ]
        assert client.get(f"/v1/models/{MODEL}").json() == answer["data"][0]
        assert client.get("/v1/models/fake%2Fmodel-1").json() == answer["data"][0]
        for name in ("gpt-4", "fake", f"{MODEL}/", ""):
            missing = client.get(f"/v1/models/{name}")
            assert missing.status_code == 404
            assert error_of(missing.json())["code"] == "model_not_found"


def test_the_openai_client_lists_models() -> None:
    with serve(create_app(fake_engine())) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x") as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/chat", "/v1/completions/", "/healthz", "/health/"])
def test_unknown_routes(path: str) -> None:
    with client_of(fake_engine()) as client:
        for method in ("GET", "POST"):
            answer = client.request(method, path, follow_redirects=False)
            assert answer.status_code == 404
            error_of(answer.json())


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
        ("POST", "/metrics", {"GET", "HEAD"}),
    ],
)
def test_wrong_methods(method: str, path: str, allowed: set[str]) -> None:
    with client_of(fake_engine()) as client:
        answer = client.request(method, path)
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == allowed
    error_of(answer.json())


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Bearer first-ke",
        "Bearer first-keyy",
        "Basic first-key",
        "first-key",
        "Bearer first-key first-key",
    ],
)
def test_every_route_but_the_probes_wants_a_key(header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    engine = fake_engine()
    with client_of(engine, KEYS) as client:
        for method, path in [
            ("POST", "/v1/completions"),
            ("OPTIONS", "/v1/completions"),
            ("GET", "/v1/models"),
            ("GET", f"/v1/models/{MODEL}"),
            ("GET", "/metrics"),
            ("GET", "/nowhere"),
            ("GET", "/health/"),
            ("GET", "//health"),
        ]:
            answer = client.request(method, path, headers=headers)
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert error_of(answer.json())["type"] == "invalid_request_error"
            assert "first-key" not in answer.text
        for path in ("/metrics", "/v1/models"):
            assert client.head(path, headers=headers).status_code == 401
        for path in ("/health", "/ready"):
            assert client.get(path, headers=headers).status_code == 200
    assert engine.requests == []


@pytest.mark.parametrize("header", [b"Bearer first-key", b"bearer  first-key ", "Bearer clé-2".encode()])
def test_any_of_the_keys_opens_every_route(header: bytes) -> None:
    with client_of(fake_engine(), KEYS) as client:
        headers = {b"authorization": header}
        assert client.post("/v1/completions", json=body(), headers=headers).status_code == 200
        assert client.get("/metrics", headers=headers).status_code == 200
        assert client.get("/nowhere", headers=headers).status_code == 404


def test_the_openai_client_presents_its_key() -> None:
    with serve(create_app(fake_engine(), KEYS)) as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="first-key", max_retries=0) as client:
            assert client.completions.create(model=MODEL, prompt="Say").choices
        with (
            openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.completions.create(model=MODEL, prompt="Say")


def test_keys_of_a_file_change_without_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\n first \n\nsecond\n")

    def statuses(client: TestClient) -> list[int]:
        keys = ("first", "second", "third", "given", "# ours")
        return [client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code for key in keys]

    with client_of(fake_engine(), ServerConfig(api_keys=("given",), api_key_file=file)) as client:
        assert statuses(client) == [200, 200, 401, 200, 401]
        file.write_text("third")
        assert statuses(client) == [401, 401, 200, 200, 401]
        file.unlink()
        assert statuses(client) == [401, 401, 200, 200, 401], "the keys known last"
        file.write_text("")
        assert statuses(client) == [401, 401, 401, 200, 401]
        assert client.get("/v1/models").status_code == 401


@pytest.mark.parametrize("content", ["", "# nothing\n", None])
def test_a_file_without_keys_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match="--api-key-file"):
        create_app(fake_engine(), ServerConfig(api_key_file=file))


def test_callers_share_no_prefixes() -> None:
    def salts(config: ServerConfig, *keys: str, **fields: Any) -> list[str | None]:
        engine = fake_engine()
        with client_of(engine, config) as client:
            for key in keys:
                headers = {"Authorization": f"Bearer {key}"}
                assert client.post("/v1/completions", json=body(**fields), headers=headers).status_code == 200
        return [request.cache_salt for request in engine.requests]

    assert salts(ServerConfig(api_keys=("a",)), "a") == [None]
    first, again, second = salts(ServerConfig(api_keys=("a", "b")), "a", "a", "b")
    assert first == again
    assert first != second
    assert first is not None
    assert first.endswith("/")
    assert first[:-1] not in ("a", "b")
    (salted,) = salts(ServerConfig(api_keys=("a", "b")), "a", cache_salt="s")
    assert salted == f"{first}s"


def test_keys_do_not_show_in_the_configurations_text() -> None:
    assert "first-key" not in repr(KEYS)


def test_configuration_refuses_nonsense_by_name() -> None:
    with pytest.raises(ConfigError, match="api_keys"):
        ServerConfig(api_keys=("",))
    with pytest.raises(ConfigError, match="max_body_bytes must be more than 0, not 0"):
        ServerConfig(max_body_bytes=0)


def samples(text: str) -> dict[tuple[str, str], float]:
    """By name and what else labels it; every sample must carry the model's name."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels["model_name"] == MODEL
            labels = [value for name, value in sample.labels.items() if name not in ("model_name", "le")]
            found[sample.name, "".join(labels)] = sample.value
    return found


def test_metrics() -> None:
    numbers = EngineStats(
        kernels="native",
        num_running=3,
        num_waiting=2,
        blocks_total=8,
        blocks_free=6,
        blocks_cached=5,
        steps=11,
        narrow_steps=5,
        step_seconds=1.5,
        host_seconds=0.25,
        prefix_queries=90,
        prefix_hits=64,
        prompt_tokens=100,
        generation_tokens=50,
        step_tokens=170,
        padded_tokens=7,
        preemptions=4,
        compilations_after_ready=0,
    )
    engine = fake_engine(numbers=numbers, reply=says(byte_by_byte("Hello END")))
    with client_of(engine) as client:
        client.post("/v1/completions", json=body(max_tokens=3))
        client.post("/v1/completions", json=body(n=2, stop="END", max_tokens=50))
        client.post("/v1/completions", json=body(max_tokens=4, stream=True))
        answer = client.get("/metrics")
        head = client.head("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert (head.status_code, head.content) == (200, b"")
    found = samples(answer.text)
    assert found["jaxgen_kernels_info", "native"] == 1
    expected = {
        "num_requests_running": 3,
        "num_requests_waiting": 2,
        "kv_cache_usage_perc": 0.25,
        "kv_cache_blocks": 8,
        "prompt_tokens_total": 100,
        "generation_tokens_total": 50,
        "step_tokens_total": 170,
        "padded_tokens_total": 7,
        "steps_total": 11,
        "narrow_steps_total": 5,
        "step_seconds_total": 1.5,
        "host_seconds_total": 0.25,
        "prefix_cache_queries_total": 90,
        "prefix_cache_hits_total": 64,
        "num_preemptions_total": 4,
        "compilations_after_ready_total": 0,
        "time_to_first_token_seconds_count": 4,
        "inter_token_latency_seconds_count": 2 + 2 * 8 + 3,
        "e2e_request_latency_seconds_count": 4,
        "request_queue_time_seconds_count": 4,
        "request_queue_time_seconds_sum": 4 * 0.25,
        "request_prefill_time_seconds_sum": 4 * 0.5,
        "request_decode_time_seconds_count": 4,
        "request_prompt_tokens_sum": 4 * len(TOKENIZER.encode("Say")),
        "request_generation_tokens_sum": 3 + 2 * 9 + 4,
    }
    states = {state: value for (name, state), value in found.items() if name == "jaxgen_kv_cache_blocks_by_state"}
    assert states == {"used": 2, "cached": 5, "free": 1}
    assert found["jaxgen_http_responses_total", "200"] == 3
    assert {name: found[f"jaxgen_{name}", ""] for name in expected} == expected
    finished = {reason: value for (name, reason), value in found.items() if name == "jaxgen_request_success_total"}
    assert finished == {"stop": 2, "length": 2, "abort": 0, "error": 0}


def test_metrics_count_failures_apart() -> None:
    async def fail(request: Request, index: int) -> None:
        raise RuntimeError("no")

    with client_of(fake_engine(pace=fail)) as client:
        client.post("/v1/completions", json=body())
        found = samples(client.get("/metrics").text)
    assert found["jaxgen_request_success_total", "error"] == 1
    assert found["jaxgen_e2e_request_latency_seconds_count", ""] == 0


def test_two_apps_in_one_process_count_apart() -> None:
    first, second = fake_engine(), fake_engine(model=ModelInfo(MODEL, 128, 400))
    with client_of(first) as one, client_of(second) as other:
        one.post("/v1/completions", json=body())
        assert samples(one.get("/metrics").text)["jaxgen_request_success_total", "length"] == 1
        assert samples(other.get("/metrics").text)["jaxgen_request_success_total", "length"] == 0


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
