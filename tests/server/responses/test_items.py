"""What clients send as items and around them: keys of other servers, items that mean nothing here, tools of others."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types.responses import Response

from jaxgen.server.requests import tools
from jaxgen.server.schema import base
from tests.server.responses.test_responses import CALL, PATH, WEATHER, F, ask
from tests.support.fakes import MODEL
from tests.support.server_app import client_of, error_of
from tests.support.tool_engines import prompt_of, tool_engine

WEB_SEARCH = {"type": "web_search", "external_web_access": False}
NAMESPACE = {"type": "namespace", "name": "agents", "description": "", "tools": [{"type": "function", "name": "spawn"}]}


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is said once in a process is said in each test."""
    monkeypatch.setattr(base, "_dropped", set())
    tools._said.cache_clear()
    yield
    tools._said.cache_clear()


def test_keys_that_are_not_known_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """As they are in answers of OpenAI's and of others, and as clients mark what they send."""
    link = {"type": "url_citation", "url": "http://a", "title": "a", "start_index": 0, "end_index": 1}
    said = {"type": "output_text", "text": "I look.", "annotations": [link], "logprobs": [], "parsed": None}
    plain: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"role": "assistant", "content": "I look."},
        CALL,
        {"type": "function_call_output", "call_id": CALL["call_id"], "output": "Rain"},
    ]
    marked: list[dict[str, Any]] = [
        {**plain[0], "content": [plain[0]["content"][0] | {"cache_control": {"type": "ephemeral"}}], "phase": None},
        {
            "type": "message",
            "role": "assistant",
            "content": [said],
            "id": "msg_1",
            "status": "completed",
            "phase": "commentary",
            "created_by": "x",
        },
        {**CALL, "id": "fc_1", "status": "completed", "parsed_arguments": {"city": "Paris"}, "namespace": None},
        {**plain[3], "id": "fco_1", "status": None, "name": "get_weather"},
    ]
    engine = tool_engine("hermes", "Hello")
    ask(engine, input=plain)
    meant = prompt_of(engine)
    with caplog.at_level(logging.DEBUG, logger="jaxgen.server.schema.base"):
        ask(engine, input=marked)
    assert prompt_of(engine) == meant
    messages = [record.getMessage() for record in caplog.records]
    assert "dropped 'parsed_arguments' of a FunctionCallItem" in messages
    assert len(messages) == len(set(messages))
    marked_tool = {**WEATHER, "defer_loading": False, "cache_control": {}, "output_schema": None}
    ask(engine, input=marked, tools=[WEATHER])
    meant = prompt_of(engine)
    response = ask(engine, input=marked, tools=[marked_tool])
    assert prompt_of(engine) == meant
    assert response["tools"] == [WEATHER]


def test_what_another_model_thought_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    thought = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "Secret."}],
        "encrypted_content": "abc",
        "status": None,
    }
    engine = tool_engine("hermes", "Hello")
    with caplog.at_level(logging.DEBUG, logger="jaxgen.server.responses"):
        ask(engine, input=[{"role": "user", "content": "Hi"}, thought, {"role": "user", "content": "And"}])
    assert "Secret" not in prompt_of(engine)
    assert [record.getMessage() for record in caplog.records] == ["dropped an item of reasoning"]


def test_a_refusal_is_text_of_the_assistant() -> None:
    engine = tool_engine("hermes", "Hello")
    refused = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}], "id": "msg_1"}
    with client_of(engine) as client:
        made = client.post(PATH, json={"model": MODEL, "input": [{"role": "user", "content": "Hi"}, refused]}).json()
        items = client.get(f"{PATH}/{made['id']}/input_items?order=asc").json()["data"]
    assert "<|im_start|>assistant\nI will not.<|im_end|>" in prompt_of(engine)
    assert items[1]["content"] == refused["content"]


def test_tools_of_other_kinds_are_dropped_with_one_warning_for_each(caplog: pytest.LogCaptureFixture) -> None:
    engine = tool_engine("hermes", "Hello")
    ask(engine, tools=[F])
    meant = prompt_of(engine)
    with caplog.at_level(logging.WARNING, logger="jaxgen.server.responses"):
        for _ in range(2):
            response = ask(engine, tools=[WEB_SEARCH, F, NAMESPACE, {"type": "local_shell"}, {"type": "custom"}])
            assert prompt_of(engine) == meant
            assert response["tools"] == [{"type": "function", "name": "f"}]
            Response.model_validate(response)
    kinds = [record.getMessage().split("'")[1] for record in caplog.records]
    assert kinds == ["web_search", "namespace", "local_shell", "custom"]


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "web_search"},
        {"type": "custom", "name": "c"},
        {"type": "function", "name": "spawn"},
        {"type": "allowed_tools", "mode": "required", "tools": [WEB_SEARCH]},
        "required",
    ],
)
def test_a_tool_that_is_dropped_cannot_be_demanded(choice: Any) -> None:
    engine = tool_engine("hermes", "Hello")
    error = error_of(ask(engine, 400, tools=[WEB_SEARCH, NAMESPACE], tool_choice=choice))
    assert error["param"] in ("tool_choice", "tool_choice.type")
    assert engine.requests == []


def test_codex_is_answered() -> None:
    """The body that Codex 0.169 sends for a model that it does not know, with shorter texts."""
    engine = tool_engine("hermes", "Hello")
    items = [
        {
            "type": "message",
            "id": f"msg_{i}",
            "role": role,
            "content": [{"type": "input_text", "text": text}],
            "internal_chat_message_metadata_passthrough": {"turn_id": "t"},
        }
        for i, (role, text) in enumerate(
            [("developer", "You are Codex."), ("developer", "Skills."), ("user", "<cwd>/</cwd>"), ("user", "Say hi")]
        )
    ]
    events = ask(
        engine,
        stream=True,
        input=items,
        tools=[{**WEATHER, "strict": False}, NAMESPACE, WEB_SEARCH],
        tool_choice="auto",
        parallel_tool_calls=True,
        reasoning={"summary": "auto"},
        store=False,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="01a20a0e-11ab-75a2-9a22-12552ede20ec",
        client_metadata={"session_id": "s", "x-codex-turn-metadata": "{}"},
    )
    response = events[-1]["response"]
    assert (events[-1]["type"], response["store"]) == ("response.completed", False)
    assert response["output"][0]["content"][0]["text"] == "Hello"
    assert prompt_of(engine).endswith("<|im_start|>user\nSay hi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("arguments", ["", "{", "null", "[1]", "not json"])
def test_arguments_of_a_past_call_may_be_any_text(arguments: str) -> None:
    engine = tool_engine("hermes", "Hello")
    output = {"type": "function_call_output", "call_id": CALL["call_id"], "output": "Wrong."}
    ask(engine, input=[{"role": "user", "content": "Hi"}, {**CALL, "arguments": arguments}, output])
    assert "Wrong." in prompt_of(engine)
