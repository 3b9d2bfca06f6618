"""Bodies of many small parts: one bound for all of them, which is looked at before they are."""

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from jaxgen.server.config import ServerConfig
from jaxgen.server.limits import Limits
from tests.support.fakes import MODEL
from tests.support.server_app import body, client_of, error_of, fake_engine


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with client_of(fake_engine()) as client:
        yield client


MANY: dict[str, tuple[str, str, dict[str, Any]]] = {
    "blocks": ("/v1/messages", "messages.0.content", {"content": [{"type": "text", "text": ""}] * 5}),
    "calls of blocks": (
        "/v1/messages",
        "messages.0.content",
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}] * 5},
    ),
    "parts of a result": (
        "/v1/messages/count_tokens",
        "messages.0.content.0.content",
        {"content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": ""}] * 4}]},
    ),
    "parts": ("/v1/chat/completions", "messages.0.content", {"content": [{"type": "text", "text": ""}] * 5}),
    "calls": (
        "/v1/chat/completions",
        "messages.0.tool_calls",
        {"role": "assistant", "content": [{"text": ""}] * 2, "tool_calls": [{"function": {"name": "f"}}] * 3},
    ),
    "parts to be counted": ("/tokenize", "messages.0.content", {"content": [{"type": "text", "text": ""}] * 5}),
    "parts of an item": ("/v1/responses", "input.0.content", {"content": [{"type": "input_text", "text": ""}] * 5}),
}


@pytest.mark.parametrize("case", MANY)
def test_parts_of_all_messages_have_one_bound(case: str) -> None:
    path, field, message = MANY[case]
    message = {"role": "user", **message}
    with client_of(fake_engine(), ServerConfig(limits=Limits(max_parts=4))) as client:
        fields: dict[str, Any] = {"input" if path == "/v1/responses" else "messages": [message]}
        fields |= {"max_tokens": 1} if path == "/v1/messages" else {}
        answer = client.post(path, json={"model": MODEL, **fields})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["message"].startswith(f"{field}: ")
    assert "--max-parts" in error["message"]


def test_parts_are_counted_together_and_before_they_are_looked_at() -> None:
    config = ServerConfig(limits=Limits(max_parts=4))
    messages = [{"role": "user", "content": [{"type": "text", "text": ""}] * 3}, {"role": "user", "content": [1, 2]}]
    asked = {"model": MODEL, "messages": messages}
    with client_of(fake_engine(), config) as client:
        answer = client.post("/v1/chat/completions", json=asked)
        assert error_of(answer.json())["param"] == "messages.1.content"
        edits = {**asked, "max_tokens": 1, "context_management": {"edits": [{}] * 5}}
        answer = client.post("/v1/messages", json={**edits, "messages": [{"role": "user", "content": "Hi"}]})
        assert answer.json()["error"]["message"].startswith("context_management.edits: ")
        assert client.post("/v1/chat/completions", json={**asked, "messages": messages[:1] * 2}).status_code == 400


def test_results_are_messages() -> None:
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a"}
    messages = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result] * 4}]
    with client_of(fake_engine(), ServerConfig(limits=Limits(max_messages=4))) as client:
        answer = client.post("/v1/messages", json={"messages": messages, "max_tokens": 1})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("messages: with each tool_result as one there are more than 4")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {}),
        ("response_format.json_schema", {"type": "json_schema", "json_schema": {}}),
        ("stream_options", {}),
        ("tool_choice", {}),
    ],
)
def test_an_object_of_unknown_keys_is_refused_before_each_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, field: str, value: dict[str, Any]
) -> None:
    many = {f"k{i}": 1 for i in range(1001)}
    asked = {**value, "json_schema": many} if value else many
    monkeypatch.setattr("jaxgen.server.schema.parsing._first_fault", None)
    with client_of(fake_engine()) as client:
        messages = [{"role": "user", "content": "Hi"}]
        answer = client.post("/v1/chat/completions", json={"messages": messages, field.partition(".")[0]: asked})
    assert answer.status_code == 400
    assert error_of(answer.json())["param"] == field


@pytest.mark.parametrize(
    "field", ["max_tokens", "priority", "seed", "n", "min_tokens", "temperature", "logprobs", "prompt"]
)
@pytest.mark.parametrize("sign", [1, -1])
def test_long_numbers_are_cut_in_errors(client: TestClient, field: str, sign: int) -> None:
    value = sign * 10**3999
    answer = client.post("/v1/completions", json={**body(), field: [value] if field == "prompt" else value})
    assert answer.status_code == 400
    assert len(answer.content) < 1000
