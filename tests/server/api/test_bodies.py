"""Bodies that are no request: malformed, too long, or of another content type."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.requests import ClientDisconnect
from starlette.testclient import TestClient
from starlette.types import Message

from jaxgen.server.api.body import FREE_BYTES, Bodies
from jaxgen.server.app import create_app
from jaxgen.server.config import ServerConfig
from jaxgen.server.errors import ApiError
from jaxgen.server.limits import Limits
from jaxgen.server.openapi import ROUTES
from tests.support.fakes import MODEL, FakeEngine
from tests.support.server_app import body, client_of, error_of, fake_engine


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
    with client_of(fake_engine(), ServerConfig(limits=Limits(max_body_bytes=len(content)))) as client:
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
    app = create_app(fake_engine(), ServerConfig(limits=Limits(max_body_bytes=100)))
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


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "GZIP, identity"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
def test_compressed_bodies_are_refused_by_name(client: TestClient, path: str, coding: str) -> None:
    answer = client.post(path, content=b"\x1f\x8b", headers={"content-encoding": coding})
    assert answer.status_code == 415
    assert answer.headers["accept-encoding"] == "identity"
    assert repr(coding.lower()) in error_of(answer.json())["message"]


def test_a_body_that_is_said_to_be_as_it_is_is_read(client: TestClient) -> None:
    assert client.post("/v1/completions", json=body(), headers={"content-encoding": "Identity"}).status_code == 200


def lists_in(schema: Any) -> Iterator[dict[str, Any]]:
    """The lists in pydantic's own form of a model."""
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            yield schema
        for item in schema.values():
            yield from lists_in(item)
    elif isinstance(schema, list | tuple):
        for item in schema:
            yield from lists_in(item)


def test_every_list_is_read_up_to_its_first_fault() -> None:
    """Else millions of wrong entries would be as many errors, of which one is told."""
    bodies = {body for route in ROUTES for body in route.bodies}
    found = [one for kind in bodies for one in lists_in(kind.__pydantic_core_schema__)]
    assert len(found) > 10
    for one in found:
        takes_anything = one["items_schema"]["type"] == "any"
        assert takes_anything or one.get("fail_fast"), one


@pytest.mark.parametrize("field", ["stream_options", "response_format", "structured_outputs"])
def test_an_object_of_thousands_of_unknown_fields_is_one_short_answer(client: TestClient, field: str) -> None:
    answer = client.post("/v1/completions", json=body(**{field: {f"f{i}": i for i in range(1001)}}))
    assert answer.status_code == 400
    assert error_of(answer.json())["message"].startswith(f"{field}: it has 1001 fields")


@pytest.mark.parametrize(
    ("path", "field", "entry"),
    [
        ("/v1/chat/completions", "messages", {"role": "user", "content": "a"}),
        ("/v1/chat/completions", "tools", {"type": "function", "function": {"name": "f"}}),
        ("/v1/responses", "input", {"role": "user", "content": "a"}),
        ("/v1/responses", "tools", {"type": "function", "name": "f"}),
        ("/v1/messages", "messages", {"role": "user", "content": "a"}),
        ("/v1/messages", "tools", {"name": "f", "input_schema": {}}),
        ("/v1/embeddings", "input", "a"),
        ("/v1/embeddings", "input", [5]),
        ("/v1/completions", "prompt", "a"),
        ("/tokenize", "messages", {"role": "user", "content": "a"}),
    ],
)
def test_entries_of_a_kind_are_bounded_by_their_own_limit(path: str, field: str, entry: Any) -> None:
    own, others = (2, 1) if path in ("/v1/embeddings", "/v1/completions") else (1, 2)
    config = ServerConfig(limits=Limits(max_inputs=own, max_prompts=own, max_messages=others, max_tools=others))
    with client_of(fake_engine(), config) as client:
        taken, refused = (client.post(path, json={"model": MODEL, field: [entry] * count}).text for count in (2, 3))
    assert "this server takes" not in taken
    assert f"{field} has 3 entries; this server takes 2." in refused


def read_together(bodies: Bodies, *lengths: int) -> list[str]:
    """What becomes of bodies that arrive at the same time, a tenth of each after another, and never end."""

    async def main() -> list[str]:
        async def read(length: int) -> str:
            left = 10

            async def receive() -> Message:
                nonlocal left
                if left == 0:
                    await asyncio.sleep(0.05)
                    return {"type": "http.disconnect"}
                left -= 1
                await asyncio.sleep(0)
                return {"type": "http.request", "body": b" " * (length // 10), "more_body": True}

            try:
                await bodies.read_json_object({"type": "http", "headers": []}, receive)
            except (ApiError, ClientDisconnect) as error:
                return getattr(error, "code", None) or "held"
            raise AssertionError("it cannot be read to its end")

        return sorted(await asyncio.gather(*map(read, lengths)))

    return asyncio.run(main())


def test_unfinished_bodies_are_bounded_together() -> None:
    bodies = Bodies(10 * FREE_BYTES, 2 * FREE_BYTES)
    for _ in range(2):  # what was held is given back
        assert read_together(bodies, *[3 * FREE_BYTES] * 2) == ["held", "too_many_bodies"]
        assert read_together(bodies, *[FREE_BYTES] * 20) == ["held"] * 20
        assert read_together(bodies, 10 * FREE_BYTES) == ["held"], "alone it may be as long as any"


def test_metadata_has_16_pairs_at_most(client: TestClient) -> None:
    for count, over in ((16, False), (17, True)):
        pairs = {str(i): "" for i in range(count)}
        answer = client.post("/v1/chat/completions", json={"model": MODEL, "metadata": pairs})
        assert (error_of(answer.json())["param"] == "metadata") == over


@pytest.mark.parametrize(
    ("content", "content_type", "words"),
    [
        (json.dumps(body()).encode("utf-16-le"), None, "The body is UTF-16 or UTF-32: send UTF-8."),
        (json.dumps(body()).encode("utf-16-be"), None, "The body is UTF-16 or UTF-32: send UTF-8."),
        (json.dumps(body()).encode("utf-32-le"), None, "The body is UTF-16 or UTF-32: send UTF-8."),
        (
            '{"prompt": "é"}'.encode("latin-1"),
            "application/json; charset=iso-8859-1",
            "byte 0xe9 at position 12, which Content-Type says (charset=iso-8859-1). Send UTF-8.",
        ),
        ('{"prompt": "é"}'.encode("cp1252"), None, "The body is not UTF-8: byte 0xe9 at position 12. Send UTF-8."),
        (b'{"prompt": "a\\ud83d"}', None, r"half of a surrogate pair, \ud83d at position 13"),
        (b'{"prompt": "\\uDE00 a"}', None, r"half of a surrogate pair, \uDE00 at position 12"),
        (b'{"prompt": "\\ud83d\\ude00 \\\\ud83d \\ud83d\\n"}', None, r"\ud83d at position 33"),
        (b'{"prompt": "\\ud83d\\ude00"', None, "The body is not valid JSON"),
    ],
)
def test_characters_that_are_wrong_are_named(
    client: TestClient, content: bytes, content_type: str | None, words: str
) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    answer = client.post("/v1/completions", content=content, headers=headers)
    assert answer.status_code == 400
    assert words in error_of(answer.json())["message"]


def test_a_charset_that_is_wrong_for_ascii_changes_nothing(client: TestClient) -> None:
    headers = {"content-type": "application/json; charset=iso-8859-1"}
    assert client.post("/v1/completions", content=json.dumps(body()), headers=headers).status_code == 200
