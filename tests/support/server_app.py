"""What the server's tests share: an app around a fake engine, and ways to call it."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from starlette.applications import Starlette
from starlette.testclient import TestClient
from starlette.types import Message

from jaxgen.server.app import create_app
from jaxgen.server.config import DEFAULT_CONFIG, ServerConfig
from jaxgen.text.tokenizer import Tokenizer
from tests.support import tiny_tokenizers
from tests.support.fakes import MODEL, FakeEngine

# First: an app imports some of transformers in a thread, and its lazy modules cannot be imported in two at once, as by
# the next test module.
import_module("transformers").AutoTokenizer  # noqa: B018

TOKENIZER = Tokenizer(tiny_tokenizers.byte_level())
SPACED_TOKENIZER = Tokenizer(tiny_tokenizers.byte_fallback())
BYTE_TOKENS = {
    TOKENIZER.text_bytes(token): token for token in reversed(range(400)) if len(TOKENIZER.text_bytes(token)) == 1
}

NONE_CACHED = {"prompt_tokens_details": {"cached_tokens": 0}}
"""What usage says where the prefix cache had nothing."""


def byte_by_byte(text: str) -> list[int]:
    """Tokens of one byte each, so that every other character is split."""
    return [BYTE_TOKENS[bytes([byte])] for byte in text.encode()]


def fake_engine(**fields: Any) -> FakeEngine:
    return FakeEngine(**{"tokenizer": TOKENIZER, **fields})


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "Say", **fields}


@contextmanager
def client_of(engine: FakeEngine, config: ServerConfig = DEFAULT_CONFIG) -> Iterator[TestClient]:
    with TestClient(create_app(engine, config), raise_server_exceptions=False) as client:
        yield client


def complete(engine: FakeEngine, **fields: Any) -> dict[str, Any]:
    """The answer to a request that must succeed."""
    with client_of(engine) as client:
        answer = client.post("/v1/completions", json=body(**fields))
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def refusal(engine: FakeEngine, status: int = 400, **fields: Any) -> dict[str, Any]:
    """The error object of a request that must be refused, before the engine sees it."""
    with client_of(engine) as client:
        answer = client.post("/v1/completions", json=body(**fields))
    assert answer.status_code == status, answer.text
    assert engine.requests == []
    return error_of(answer.json())


def error_of(answer: dict[str, Any]) -> dict[str, Any]:
    """The error object, after a look at its shape."""
    assert set(answer) == {"error"}
    error: dict[str, Any] = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert error["type"] in ("invalid_request_error", "rate_limit_error", "server_error")
    return error


def stream_chunks(text: str) -> list[Any]:
    """The JSON of each event but [DONE], which must end the text if no error does."""
    events = text.split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: ") and "\n" not in event for event in events), "lines that OpenAI's have not"
    data = [event.removeprefix("data: ") for event in events]
    if data[-1] == "[DONE]":
        data.pop()
    else:
        assert set(json.loads(data[-1])) == {"error"}
    return [json.loads(item) for item in data]


Send = Callable[[Message], Awaitable[None]]


async def call(
    app: Starlette,
    fields: dict[str, Any],
    send: Send,
    *,
    leave: asyncio.Event | None = None,
    path: str = "/v1/completions",
    method: str = "POST",
) -> None:
    """One request at the ASGI level; ``leave`` set: the caller is gone."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [],
    }
    messages: list[Message] = [{"type": "http.request", "body": json.dumps(fields).encode(), "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await (leave or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    await app(scope, receive, send)
