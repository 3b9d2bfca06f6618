"""Bodies that are no request: malformed, too long, or of another content type."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from server.app import create_app
from server.config import ServerConfig
from tests.fakes import MODEL, FakeEngine
from tests.server_app import body, client_of, error_of, fake_engine


@pytest.fixture
def engine() -> FakeEngine:
    return fake_engine()


@pytest.fixture
def client(engine: FakeEngine) -> Iterator[TestClient]:
    with client_of(engine) as made:
        yield made


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1, 2]",
        b'"text"',
        b"null",
        b"5",
        b'{"model": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": -Infinity}',
        b"{'model': 1}",
        b'{"model": "a",}',
        b'{"model": "a"} x',
        b'{"model": "\xff"}',
        b'{"model": "\\ud800"}',
        '{"model": "a"}'.encode("utf-16"),
        b"[" * 100_000,
        b'{"prompt": ' + b"[" * 100_000,
        b'{"a": ' * 100_000,
        b'{"seed": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda content: repr(content[:16]),
)
def test_malformed_bodies(engine: FakeEngine, client: TestClient, content: bytes) -> None:
    answer = client.post("/v1/completions", content=content)
    assert answer.status_code == 400
    assert "body" in error_of(answer.json())["message"]
    assert engine.requests == []


def test_a_number_beyond_floats_is_refused(client: TestClient) -> None:
    content = json.dumps(body()).replace("}", ', "temperature": 1e999}')
    answer = client.post("/v1/completions", content=content)
    assert (answer.status_code, error_of(answer.json())["param"]) == (400, "temperature")


def test_many_faults_at_once_are_one_short_answer(client: TestClient) -> None:
    for fields in (
        {f"field{i}": 1 for i in range(50_000)},
        {"prompt": ["a"] + [1] * 100},
        {"prompt": [1, "a"] * 50_000},
    ):
        answer = client.post("/v1/completions", json={"model": MODEL, **fields})
        assert answer.status_code == 400
        assert len(answer.content) < 1000


def test_a_body_at_the_limit_is_read_and_one_over_it_is_not() -> None:
    content = json.dumps(body()).encode()
    with client_of(fake_engine(), ServerConfig(max_body_bytes=len(content))) as client:
        assert client.post("/v1/completions", content=content).status_code == 200
        answer = client.post("/v1/completions", content=content + b" ")
        assert answer.status_code == 413
        assert str(len(content)) in error_of(answer.json())["message"]


@pytest.mark.parametrize("headers", [[], [(b"content-length", b"1000000")]])
def test_the_rest_of_a_body_over_the_limit_stays_unread(headers: list[tuple[bytes, bytes]]) -> None:
    reads, sent = [], []

    async def receive() -> dict[str, Any]:
        reads.append(1)
        assert len(reads) < 10, "reads on and on"
        return {"type": "http.request", "body": b" " * 40, "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b""}
    app = create_app(fake_engine(), ServerConfig(max_body_bytes=100))
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 413
    assert len(reads) == (0 if headers else 3)


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        (None, 200),
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
    ],
)
def test_content_types(client: TestClient, content_type: str | None, status: int) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    answer = client.post("/v1/completions", content=json.dumps(body()), headers=headers)
    assert answer.status_code == status
    if status != 200:
        assert "application/json" in error_of(answer.json())["message"]
