"""Callers learn that the server has a trouble, and nothing of what an unexpected error says."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from jaxgen.client import EngineStatus
from jaxgen.core.errors import EngineDeadError, HelperLostError
from jaxgen.core.model_info import ChatFormat
from jaxgen.core.request import Request
from jaxgen.server.errors import as_api_error
from tests.support.server_app import body, client_of, error_of, fake_engine

SECRET = "RuntimeError: no such file: /srv/prompts/of/another"


@pytest.mark.parametrize("path", ["/health", "/ready", "/livez"])
def test_a_probe_of_a_dead_engine_refers_to_the_log(path: str) -> None:
    engine = fake_engine()
    engine.state = EngineStatus("dead", SECRET)
    with client_of(engine) as client:
        answer = client.get(path)
    assert answer.status_code == 503
    assert answer.json() == {"status": "unavailable", "reason": "the engine is dead; the server's log says why"}


def test_a_request_to_a_dead_engine_gets_no_reason() -> None:
    engine = fake_engine()
    engine.state = EngineStatus("dead", SECRET)
    with client_of(engine) as client:
        answer = client.post("/v1/completions", json=body())
    assert (answer.status_code, error_of(answer.json())["code"]) == (503, "engine_dead")
    assert "RuntimeError" not in answer.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("error", [EngineDeadError(SECRET), RuntimeError(SECRET)])
def test_an_error_under_way_is_told_without_its_text(error: Exception, stream: bool) -> None:
    async def fail(request: Request, index: int) -> None:
        raise error

    engine = fake_engine()
    engine.pace = fail
    with client_of(engine) as client:
        answer: Any = client.post("/v1/completions", json=body(stream=stream, max_tokens=8))
    assert answer.status_code == (503 if isinstance(error, EngineDeadError) else 500)
    assert "server_error" in answer.text
    assert "/srv" not in answer.text
    assert "RuntimeError" not in answer.text


def test_an_error_in_the_midst_of_a_stream_is_told_without_its_text() -> None:
    async def fail(request: Request, index: int) -> None:
        if index == 2:
            await asyncio.sleep(0.05)  # the events before this one are on their way
            raise RuntimeError(SECRET)

    engine = fake_engine()
    engine.pace = fail
    with client_of(engine) as client:
        answer = client.post("/v1/completions", json=body(stream=True, max_tokens=8))
    assert "server_error" in answer.text
    assert "/srv" not in answer.text


def test_a_lost_helper_is_a_503_that_refers_to_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lost(*_: object, **_more: object) -> None:
        raise HelperLostError(f"a helper process ended in its work by signal 9: {SECRET}")

    monkeypatch.setattr("jaxgen.processes.helper.Helper.call", lost)
    model = replace(fake_engine().model, chat=ChatFormat("{{ messages[0].content }}", {}))
    with client_of(fake_engine(model=model)) as client:
        answers = [
            client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]}),
            client.post("/v1/completions", json=body() | {"response_format": {"type": "json_object"}}),
        ]
    for answer in answers:
        assert (answer.status_code, error_of(answer.json())["code"]) == (503, "helper_lost")
        assert answer.headers["retry-after"] == "1"
        assert "/srv" not in answer.text
    assert "by signal 9" in caplog.text


def test_the_error_of_a_batchs_line_has_no_text_of_it_either() -> None:
    assert "/srv" not in as_api_error(EngineDeadError(SECRET)).message
