"""The log: a line for each request, plain or JSON, and no text of prompts unless asked."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from jaxgen.core.request import Request
from jaxgen.server.config import DEFAULT_CONFIG, Access, Log, ServerConfig
from jaxgen.server.errors import with_prompts
from jaxgen.server.limits import Limits
from jaxgen.server.log import FIELDS, _Json, _Plain
from jaxgen.server.middleware.auth import ApiKeys
from tests.support.fakes import FakeEngine, says
from tests.support.server_app import TOKENIZER, body, byte_by_byte, client_of, fake_engine

SECRET = "my secret diary"


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [
        getattr(record, FIELDS) for record in caplog.records if record.name == "jaxgen.server.middleware.access_log"
    ]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "jaxgen"):
        yield caplog


def failing(text: str) -> FakeEngine:
    async def pace(request: Request, index: int) -> None:
        if index == 2:
            await asyncio.sleep(0.05)  # a stream has begun then
            raise KeyError(text)

    return fake_engine(reply=says(byte_by_byte("abcdef")), pace=pace)


def test_a_completion_has_one_line(log: pytest.LogCaptureFixture) -> None:
    with client_of(fake_engine(cached=2)) as client:
        client.post("/v1/completions", json=body(n=2, max_tokens=5), headers={"x-request-id": "mine"})
    (line,) = lines(log)
    assert 0 < line.pop("ttft_seconds") <= line.pop("seconds")
    assert line == {
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "request_id": "mine",
        "client": "testclient",
        "model": "fake/model-1",
        "prompt_tokens": len(TOKENIZER.encode("Say")),
        "cached_tokens": 2,
        "completion_tokens": 10,
        "choices": 2,
        "finish_reasons": ["length"],
    }


def test_embeddings_have_theirs(log: pytest.LogCaptureFixture) -> None:
    inputs = {"model": "fake/model-1", "input": ["Say", SECRET]}
    with client_of(fake_engine()) as client:
        client.post("/v1/embeddings", json=inputs, headers={"x-request-id": "mine"})
    with client_of(fake_engine(), ServerConfig(log=Log(log_prompts=True))) as client:
        client.post("/v1/embeddings", json=inputs)
    line, with_prompts = lines(log)
    assert line.pop("seconds") > 0
    assert line == {
        "method": "POST",
        "path": "/v1/embeddings",
        "status": 200,
        "request_id": "mine",
        "client": "testclient",
        "model": "fake/model-1",
        "prompt_tokens": sum(len(TOKENIZER.encode(text)) for text in ("Say", SECRET)),
        "embeddings": 2,
    }
    assert with_prompts["prompts"] == ["Say", SECRET]


def test_failures_have_their_line_too(log: pytest.LogCaptureFixture) -> None:
    with client_of(failing("x"), replace(DEFAULT_CONFIG, limits=Limits(max_n=1))) as client:
        client.post("/v1/completions", json=body(n=2))
        client.post("/v1/completions", json=body(model="other"))
        client.post("/v1/completions", json=body())
        client.post("/v1/completions", json=body(stream=True))
        client.get("/nowhere")
        client.post("/tokenize", json={"model": "fake/model-1", "prompt": "a"})
    found = [(line["path"], line["status"], line.get("error")) for line in lines(log)]
    assert found == [
        ("/v1/completions", 400, "invalid_request_error"),
        ("/v1/completions", 404, "model_not_found"),
        ("/v1/completions", 500, "server_error"),
        ("/v1/completions", 200, "server_error"),
        ("/nowhere", 404, "invalid_request_error"),
        ("/tokenize", 200, None),
    ]


def test_probes_are_for_debugging(log: pytest.LogCaptureFixture) -> None:
    with client_of(fake_engine()) as client:
        for path in ("/health", "/ready", "/livez", "/metrics"):
            client.get(path)
        assert lines(log) == []
        with log.at_level(logging.DEBUG, "jaxgen"):
            client.get("/health")
    assert [line["path"] for line in lines(log)] == ["/health"]


def test_callers_are_told_apart_by_a_hash_and_refused_ones_logged(log: pytest.LogCaptureFixture) -> None:
    keys = ("first-key", "second-key")
    with client_of(fake_engine(), ServerConfig(access=Access(api_keys=keys))) as client:
        for key in (*keys, "wrong-key"):
            client.get("/v1/models", headers={"authorization": f"Bearer {key}"})
    found = lines(log)
    assert [line["status"] for line in found] == [200, 200, 401]
    assert [line.get("caller") for line in found] == [
        *((ApiKeys(keys).caller(key.encode()) or "")[:12] for key in keys),
        None,
    ]
    assert not any(key in log.text + str(found) for key in (*keys, "wrong-key"))


SPILLS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", body(prompt=SECRET)),
    ("/v1/completions", body(prompt=SECRET, stream=True)),
    ("/v1/completions", body(prompt=SECRET, stop=[SECRET], user=SECRET)),
    ("/v1/completions", body(prompt=[SECRET, 5])),
    ("/v1/completions", body(prompt={"text": SECRET})),
    ("/v1/completions", {**body(), SECRET: SECRET}),
    ("/v1/completions", body(model=SECRET)),
    ("/v1/completions", body(logit_bias={SECRET: 1})),
    ("/v1/completions", body(prompt=SECRET, temperature=SECRET)),
    ("/v1/chat/completions", {"model": "fake/model-1", "messages": [{"role": "user", "content": SECRET}]}),
    ("/v1/chat/completions", {"model": "fake/model-1", "messages": [{"role": SECRET, "content": SECRET}]}),
    ("/v1/chat/completions", {"model": "fake/model-1", "messages": SECRET}),
    ("/v1/embeddings", {"model": "fake/model-1", "input": SECRET}),
    ("/tokenize", {"model": "fake/model-1", "prompt": SECRET}),
]


@pytest.mark.parametrize(("path", "fields"), SPILLS)
def test_no_text_of_a_prompt_is_logged(log: pytest.LogCaptureFixture, path: str, fields: dict[str, Any]) -> None:
    """Whether it is answered, refused, or fails with an error that quotes it."""
    for engine in (fake_engine(), failing(SECRET)):
        with client_of(engine) as client, log.at_level(logging.DEBUG, "jaxgen"):
            client.post(path, json=fields)
            client.post(path, content=f'{{"prompt": "{SECRET}')
    said = log.text + str([vars(record) for record in log.records if record.name.startswith("jaxgen")])
    assert "request" in said
    assert SECRET not in said
    assert "secret" not in said


def test_an_unexpected_error_is_located(log: pytest.LogCaptureFixture) -> None:
    with client_of(failing(SECRET)) as client:
        client.post("/v1/completions", json=body())
    assert "unexpected KeyError" in log.text
    assert "in pace" in log.text


def test_prompts_are_logged_if_asked(log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(with_prompts, "level", logging.NOTSET)
    monkeypatch.setattr(with_prompts, "_cache", {})
    with client_of(failing("quotes it"), ServerConfig(log=Log(log_prompts=True, max_log_len=20))) as client:
        client.post("/v1/completions", json=body(prompt=[SECRET, "b" * 50], max_tokens=1))
        client.post("/v1/completions", json=body())
    assert lines(log)[0]["prompts"] == [SECRET, "b" * 20]
    assert "KeyError: 'quotes it'" in log.text


@contextmanager
def written(formatter: logging.Formatter) -> Iterator[tuple[logging.Logger, io.StringIO]]:
    out, logger = io.StringIO(), logging.Logger("server.test", logging.INFO)
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    logger.addHandler(handler)
    yield logger, out


def test_json_lines_are_one_object_each() -> None:
    with written(_Json()) as (logger, out):
        logger.info("request", extra={FIELDS: {"status": 200, "path": "/a\nb", "ids": ["x"]}})
        try:
            raise ValueError("two\nlines")
        except ValueError:
            logger.exception("it failed: %s", "so")
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert {"message": "request", "level": "INFO", "logger": "server.test"}.items() <= first.items()
    assert (first["status"], first["path"], first["ids"]) == (200, "/a\nb", ["x"])
    assert first["timestamp"]
    assert second["message"] == "it failed: so"
    assert "ValueError: two" in second["exc_info"]


def test_plain_lines_cannot_be_forged() -> None:
    with written(_Plain("%(levelname)s: %(message)s")) as (logger, out):
        logger.info("request", extra={FIELDS: {"status": 200, "path": '/a\nINFO: request status=500 "', "ids": ["x"]}})
        logger.info("other")
    assert out.getvalue().splitlines() == [
        'INFO: request status=200 path="/a\\nINFO: request status=500 \\"" ids=["x"]',
        "INFO: other",
    ]
