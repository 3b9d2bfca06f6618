"""Conversations with tools in which something is not as it should be: an answer or an error that says so, never a
failure of the server."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.api.test_fuzz import JSON
from tests.server.tool_calls.test_parser import KINDS, TEXTS
from tests.support.fakes import MODEL
from tests.support.fuzzing import LONG, QUICK
from tests.support.server_app import client_of, error_of
from tests.support.tool_engines import tool_engine

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
CHAT = {
    "model": MODEL,
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
        {"role": "tool", "content": "1", "tool_call_id": "abcdefghi"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    "stream": True,
    "n": 2,
    "stop": ["x"],
    "logprobs": True,
}
RESPONSE = {
    "model": MODEL,
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "function_call", "call_id": "abcdefghi", "name": "f", "arguments": '{"a": 1}', "id": "fc"},
        {"type": "function_call_output", "call_id": "abcdefghi", "output": [{"type": "input_text", "text": "1"}]},
        {"type": "reasoning", "id": "rs", "summary": []},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "id": "msg"},
    ],
    "include": ["message.output_text.logprobs"],
    "instructions": "Be brief.",
    "store": True,
    "tools": [{"type": "function", **FUNCTION}, {"type": "web_search"}],
    "tool_choice": {"type": "function", "name": "f"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
    "metadata": {"a": "b"},
    "reasoning": {"effort": None},
    "stream": False,
    "max_output_tokens": 30,
}
MESSAGE: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 30,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm", "signature": ""},
                {"type": "tool_use", "id": "a", "name": "f", "input": {}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "1", "is_error": True}]},
    ],
    "tools": [{"name": "f", "input_schema": {"type": "object"}}, {"type": "bash_20250124", "name": "bash"}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "low"},
    "stop_sequences": ["END"],
    "metadata": {"user_id": "a"},
    "top_k": 5,
    "stream": False,
}
BODIES = {"/v1/chat/completions": CHAT, "/v1/messages": MESSAGE, "/v1/responses": RESPONSE}
LAST = {
    "/v1/chat/completions": "data: [DONE]",
    "/v1/messages": "event: message_stop",
    "/v1/responses": "event: response.",
}


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container of the body with each key or index in it."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


@st.composite
def faulty(draw: st.DrawFn, path: str) -> dict[str, Any]:
    """The body with up to two places taken out, replaced, or added to."""
    body = copy.deepcopy(BODIES[path])
    for _ in range(draw(st.integers(0, 2))):
        container, key = draw(st.sampled_from(places(body)))
        change = draw(st.sampled_from(["remove", "replace", "repeat"]))
        if change == "remove":
            del container[key]
        elif change == "replace":
            container[key] = draw(JSON | st.sampled_from(["f", "required", "none", "system", {}, [], ""]))
        elif isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
        else:
            container[draw(st.text(min_size=1, max_size=4))] = container[key]
    return body


def check(path: str, body: dict[str, Any], kind: str, text: str) -> None:
    engine = tool_engine(kind, text)
    with client_of(engine) as client:
        answer = client.post(path, content=json.dumps(body))
    assert answer.status_code in (200, 400, 404), (answer.status_code, answer.text[:500])
    assert not engine.open
    if answer.status_code != 200:
        error = answer.json()["error"] if path == "/v1/messages" else error_of(answer.json())
        assert error["type"] in ("invalid_request_error", "not_found_error")
    elif body.get("stream"):
        assert answer.text.rstrip("\n").split("\n\n")[-1].startswith(LAST[path])


each_path = pytest.mark.parametrize("path", sorted(BODIES))


@each_path
def test_the_bodies_themselves_are_answered(path: str) -> None:
    with client_of(tool_engine("hermes", "Hello")) as client:
        answer = client.post(path, json=BODIES[path])
    assert answer.status_code == 200, answer.text


@each_path
@QUICK
@given(data=st.data(), kind=st.sampled_from(KINDS), text=TEXTS)
def test_fuzz(path: str, data: st.DataObject, kind: str, text: str) -> None:
    check(path, data.draw(faulty(path)), kind, text)


@pytest.mark.full
@each_path
@LONG
@given(data=st.data(), kind=st.sampled_from(KINDS), text=TEXTS)
def test_fuzz_long(path: str, data: st.DataObject, kind: str, text: str) -> None:
    check(path, data.draw(faulty(path)), kind, text)
