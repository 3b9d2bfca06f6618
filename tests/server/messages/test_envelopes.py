"""Whoever refuses, and whatever fails: callers of /v1/messages get errors in Anthropic's envelope."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.testclient import TestClient

from jaxgen.client import EngineStatus
from jaxgen.core.errors import EngineDeadError, WouldBeLateError
from jaxgen.core.request import Request
from jaxgen.server.config import Access, ServerConfig
from jaxgen.server.limits import Availability, Limits, Queue
from tests.support.message_requests import PATH, asked, error_of
from tests.support.passing_time import let_pass
from tests.support.server_app import client_of
from tests.support.tool_engines import tool_engine

COUNT = f"{PATH}/count_tokens"
VERSION = {"anthropic-version": "2023-06-01"}
KEYS = ServerConfig(access=Access(api_keys=("one", "two")))


def refused(client: TestClient, status: int, kind: str, method: str = "POST", path: str = PATH, **kept: Any) -> Any:
    answer = client.request(method, path, **({"json": asked()} | kept if "content" not in kept else kept))
    assert answer.status_code == status, answer.text
    assert error_of(answer.json())["type"] == kind
    assert answer.headers["request-id"] == answer.json()["request_id"] == answer.headers["x-request-id"]
    return answer


@pytest.mark.parametrize("path", [PATH, COUNT])
def test_what_is_wrong_with_a_request(path: str) -> None:
    with client_of(tool_engine("hermes", "Hi"), ServerConfig(limits=Limits(max_body_bytes=1000))) as client:
        json_type = {"content-type": "application/json"}
        good = asked(max_tokens=10 if path == PATH else None)
        refused(client, 404, "not_found_error", path=path, json={**good, "model": "nobody"})
        refused(client, 405, "invalid_request_error", "GET", path)
        refused(client, 400, "invalid_request_error", path=path, content=b"{", headers=json_type)
        refused(client, 400, "invalid_request_error", path=path, json={**good, "n": 2})
        refused(client, 415, "invalid_request_error", path=path, content=b"{}", headers={"content-type": "text/plain"})
        refused(client, 413, "request_too_large", path=path, json={**good, "system": "a" * 1000})
        refused(client, 403, "permission_error", path=path, headers={"origin": "https://evil.example"})
        refused(client, 404, "not_found_error", path=f"{path}/nowhere")


def test_routes_of_both_apis_ask_the_header() -> None:
    with client_of(tool_engine("hermes", "Hi")) as client:
        for path in ("/v1/models/nobody", "/v1/nowhere"):
            refused(client, 404, "not_found_error", "GET", path, headers=VERSION)
            assert set(client.get(path).json()) == {"error"}
        assert "request-id" not in client.get("/v1/models").headers


@pytest.mark.parametrize("path", [PATH, COUNT])
def test_keys_in_either_header(path: str) -> None:
    fields = asked(max_tokens=5 if path == PATH else None)
    good = [
        {"x-api-key": "one"},
        {"authorization": "Bearer two"},
        {"authorization": "Bearer of another server", "x-api-key": "one"},
        {"authorization": "Bearer one", "x-api-key": "none"},
    ]
    bad: list[dict[str, str]] = [{}, {"x-api-key": ""}, {"x-api-key": "onetwo"}, {"authorization": "one"}]
    with client_of(tool_engine("hermes", "Hi"), KEYS) as client:
        for headers in good:
            answer = client.post(path, json=fields, headers={**VERSION, "anthropic-beta": "a,b", **headers})
            assert answer.status_code == 200, answer.text
        for headers in bad:
            refused(client, 401, "authentication_error", path=path, headers=headers)


def test_callers_with_the_same_key_are_one() -> None:
    """By whichever header it comes: what one has cached the other finds, and what one began the other goes on with."""
    engine = tool_engine("hermes", "Hi")
    with client_of(engine, KEYS) as client:
        for headers in ({"x-api-key": "one"}, {"authorization": "Bearer one"}, {"x-api-key": "two"}):
            assert client.post(PATH, json=asked(), headers=headers).status_code == 200
    first, same, other = (request.cache_salt for request in engine.requests)
    assert first == same != other


@pytest.mark.parametrize(
    ("status", "kind", "state", "draining"),
    [(503, "api_error", "starting", False), (503, "api_error", "dead", False), (503, "api_error", "ready", True)],
)
def test_a_server_that_takes_no_requests(status: int, kind: str, state: Any, draining: bool) -> None:
    with client_of(tool_engine("hermes", "Hi", state=EngineStatus(state))) as client:
        client.app.state.lifecycle.draining = draining  # type: ignore[attr-defined]
        answer = refused(client, status, kind)
        assert ("retry-after" in answer.headers) == (state != "dead")


async def late(request: Request, index: int) -> None:
    raise WouldBeLateError("it would be late", 7.0)


async def dead(request: Request, index: int) -> None:
    raise EngineDeadError("the device was lost")


async def broken(request: Request, index: int) -> None:
    raise RuntimeError("a secret of the device's")


async def for_ever(request: Request, index: int) -> None:
    let_pass(4.5)  # no more than until the head of a stream goes out
    await asyncio.Event().wait()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("pace", "status", "kind"),
    [
        (late, 529, "overloaded_error"),
        (dead, 503, "api_error"),
        (broken, 500, "api_error"),
        (for_ever, 504, "timeout_error"),
    ],
)
def test_what_fails_before_the_first_token(pace: Any, status: int, kind: str, *, stream: bool) -> None:
    with client_of(
        tool_engine("hermes", "Hi", pace=pace), ServerConfig(availability=Availability(request_timeout_s=4))
    ) as client:
        answer = refused(client, status, kind, json=asked(stream=stream))
    assert "secret" not in answer.text
    if pace is late:
        assert answer.headers["retry-after"] == "7"


def test_what_is_too_much_is_an_overload() -> None:
    begun, go_on = threading.Event(), threading.Event()

    async def pace(request: Request, index: int) -> None:
        begun.set()
        await asyncio.to_thread(go_on.wait, 60)

    config = ServerConfig(queue=Queue(max_queued_requests=1))
    with client_of(tool_engine("hermes", "Hi", pace=pace), config) as client, ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, PATH, json=asked())
        assert begun.wait(60)
        for stream in (False, True):
            answer = refused(client, 529, "overloaded_error", json=asked(stream=stream))
            assert "retry-after" in answer.headers
        go_on.set()
        assert first.result(60).status_code == 200


def test_what_fails_later_is_the_last_event() -> None:
    async def pace(request: Request, index: int) -> None:
        await asyncio.sleep(0.01)
        if index == 2:
            raise RuntimeError("a secret of the device's")

    with client_of(tool_engine("hermes", "Hello", pace=pace)) as client:
        answer = client.post(PATH, json=asked(stream=True))
    assert answer.status_code == 200
    *events, failed, rest = answer.text.split("\n\n")
    head, data = failed.split("\n")
    assert (head, rest) == ("event: error", "")
    said = json.loads(data.removeprefix("data: "))
    assert error_of(said)["type"] == "api_error"
    assert said["request_id"] == answer.headers["request-id"]
    assert events[0].startswith("event: message_start")
    assert "secret" not in answer.text


def test_the_log_has_the_code(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "jaxgen.server.middleware.access_log")
    with client_of(tool_engine("hermes", "Hi")) as client:
        client.post(PATH, json=asked(model="nobody"))
        client.post(PATH, json=asked())
    fields = [record.__dict__["fields"] for record in caplog.records if record.message == "request"]
    assert [(one["path"], one["status"]) for one in fields] == [(PATH, 404), (PATH, 200)]
    assert fields[0]["error"] == "model_not_found"
    assert (fields[1]["completion_tokens"], fields[1]["finish_reasons"]) == (3, ["stop"])


def test_unexpected_errors_of_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr("jaxgen.server.messages.endpoint.parse_body", fail)
    with client_of(tool_engine("hermes", "Hi")) as client:
        assert "secret" not in refused(client, 500, "api_error").text
