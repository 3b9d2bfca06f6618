"""Requests to /v1/messages with two tools, and the events of their answers, as Anthropic's SDK accumulates them."""

import json
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from pydantic import TypeAdapter
from starlette.testclient import TestClient

from tests.support.fakes import MODEL, FakeEngine
from tests.support.server_app import client_of

PATH = "/v1/messages"
F: dict[str, Any] = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
HI: dict[str, Any] = {"role": "user", "content": "Hi"}


def anthropic_types() -> ModuleType:
    """Import the types of Anthropic's SDK: by the first test that needs them, for it takes a second of each process."""
    return import_module("anthropic.types")


@cache
def event_type() -> TypeAdapter[Any]:
    """Return Anthropic's type of events."""
    return TypeAdapter(anthropic_types().RawMessageStreamEvent)


def asked(**fields: Any) -> dict[str, Any]:
    """A body; a field that is None is left out."""
    body = {"model": MODEL, "max_tokens": 10_000, "messages": [HI], **fields}
    return {name: value for name, value in body.items() if value is not None}


def ask(engine: FakeEngine, status: int = 200, path: str = PATH, **fields: Any) -> Any:
    with client_of(engine) as client:
        return ask_client(client, status, path, **fields)


def ask_client(client: TestClient, status: int = 200, path: str = PATH, **fields: Any) -> Any:
    """The message, the events, or the error."""
    answer = client.post(path, json=asked(**fields))
    assert answer.status_code == status, answer.text
    if status != 200:
        return error_of(answer.json())
    return events_of(answer.text) if fields.get("stream") else answer.json()


def error_of(answer: dict[str, Any]) -> dict[str, Any]:
    """The error, after a look at its envelope."""
    assert set(answer) == {"type", "error", "request_id"}
    assert answer["type"] == "error"
    error: dict[str, Any] = answer["error"]
    assert set(error) - {"details"} == {"type", "message"}
    assert isinstance(error.get("details", {"error_code": ""})["error_code"], str)
    assert error["message"]
    return error


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream that succeeds, without ids, each checked against its name and Anthropic's type."""
    found: list[dict[str, Any]] = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        head, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert head == f"event: {event['type']}"
        if event["type"] != "ping":
            event_type().validate_python(event)
        found.append(event)
    return found


def accumulated(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The message that Anthropic's SDK makes of events, whose order is checked: blocks one after another, each begun,
    grown by deltas of its kind and ended, between the events of the message's own."""
    accumulate_event = import_module("anthropic.lib.streaming._messages").accumulate_event
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    state, number, kind = "new", -1, ""
    deltas = {
        "text": ("text_delta",),
        "thinking": ("thinking_delta", "signature_delta"),
        "tool_use": ("input_json_delta",),
    }
    steps = {
        "message_start": ("new", "between"),
        "content_block_start": ("between", "inside"),
        "content_block_delta": ("inside", "inside"),
        "content_block_stop": ("inside", "between"),
        "message_delta": ("between", "told"),
        "message_stop": ("told", "ended"),
    }
    for event in events:
        before, after = steps[event["type"]]
        assert state == before, f"{event['type']} comes after {state}"
        state = after
        if event["type"] == "content_block_start":
            number, kind = number + 1, event["content_block"]["type"]
        if "index" in event:
            assert event["index"] == number
        if "delta" in event and "index" in event:
            assert event["delta"]["type"] in deltas[kind]
        snapshot = accumulate_event(
            event=event_type().validate_python(event), current_snapshot=snapshot, json_bufs=buffers
        )
    assert state == "ended", f"the stream ends after {state}"
    message: dict[str, Any] = anthropic_types().Message.model_validate(snapshot.to_dict()).to_dict()
    return message


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from one answer to the next, and what only one of the types has."""
    content = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return {**message, "id": "", "content": content}
