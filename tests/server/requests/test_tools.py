"""Tools in a chat request: what the model is shown of them, and what is refused."""

import json
from typing import Any

import pytest

from jaxgen.core.model_info import ChatFormat, ModelInfo
from jaxgen.server.config import Answers, ServerConfig
from tests.server.tool_calls.test_parser import KINDS, written
from tests.support.fakes import MODEL
from tests.support.server_app import client_of, error_of, fake_engine
from tests.support.tool_engines import prompt_of, tool_engine
from tests.support.tool_requests import HI, PARIS, PATH, WEATHER, F, ask
from tests.support.tool_templates import HERMES


def test_tools_are_shown_to_the_model_unless_there_is_nothing_to_choose() -> None:
    engine = tool_engine("hermes", written("hermes", [PARIS]))
    ask(engine)
    shown = json.dumps(WEATHER)
    assert shown in prompt_of(engine)
    assert '{"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}' in prompt_of(engine)
    nothing: list[dict[str, Any]] = [{"tool_choice": "none"}, {"tools": []}, {"tools": None}]
    for fields in nothing:
        (choice,) = ask(engine, **fields)["choices"]
        assert "get_weather" not in prompt_of(engine)
        assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize("kind", KINDS)
def test_calls_and_their_results_are_told_to_the_model(kind: str) -> None:
    engine = tool_engine(kind, "Fine.")
    call = {"id": "abcdefghi", "type": "function", "function": {"name": PARIS[0], "arguments": PARIS[1]}}
    history = [
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "annotations": []},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "It rains."},
    ]
    ask(engine, messages=[HI, *history])
    told = 'city:<|"|>Paris 😀}<|"|>' if kind == "gemma4" else '{"city": "Paris 😀}"}'
    assert told in prompt_of(engine)
    assert "It rains." in prompt_of(engine)
    if kind == "mistral":
        assert "[TOOL_RESULTS]get_weather: It rains." in prompt_of(engine)


def test_tokenize_counts_tools() -> None:
    with client_of(tool_engine("hermes", "")) as client:
        counts = [
            client.post("/tokenize", json={"model": MODEL, "messages": [HI], "tools": tools}).json()["count"]
            for tools in ([], [F], [F, WEATHER])
        ]
    assert counts[0] < counts[1] < counts[2]


def call_of(**fields: Any) -> list[dict[str, Any]]:
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": "{}"}, **fields}
    return [HI, {"role": "assistant", "tool_calls": [call]}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools.0"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a\n"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}]}, "tools.0.function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]}, "tools"),
        ({"tools": [F, F]}, "tools"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
        ({"messages": call_of(type="custom")}, "messages.1.tool_calls.0.type"),
        ({"messages": [{**HI, "tool_calls": call_of()[1]["tool_calls"]}]}, "messages.0.tool_calls"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    engine = tool_engine("hermes", "Hello")
    assert error_of(ask(engine, 400, **fields))["param"] == param
    assert engine.requests == []


def test_the_templates_own_refusal_is_told() -> None:
    template = "{% for m in messages %}{{ m.content if m.role != 'tool' else raise_exception('no tools') }}"
    engine = tool_engine("mistral", "Hello", model=model_with(template + "{% endfor %}"))
    history = [*call_of(), {"role": "tool", "content": "x", "tool_call_id": "abcdefghi"}]
    error = error_of(ask(engine, 400, messages=history, tools=None))
    assert error["param"] == "messages.2.role"
    assert error["message"] == (
        "The chat template refuses these messages: no tools (messages.2.role: it takes no messages of the role tool)."
    )


def test_ids_of_other_servers_are_taken_where_a_template_checks_them() -> None:
    engine = tool_engine("mistral", "Hello")
    history = [*call_of(id="long-enough"), {"role": "tool", "content": "x", "tool_call_id": "long-enough"}]
    ask(engine, messages=history)
    assert "[TOOL_RESULTS]f: x[/TOOL_RESULTS]" in prompt_of(engine)


def test_a_template_of_its_own_shows_tools() -> None:
    plain = ChatFormat("{{ messages[0].content }}", {}, tool_template=HERMES)
    engine = tool_engine("hermes", "", model=ModelInfo(MODEL, max_model_len=20_000, vocab_size=400, chat=plain))
    ask(engine)
    assert "# Tools" in prompt_of(engine)
    ask(engine, tools=None)
    assert prompt_of(engine) == "Hi"


def model_with(template: str) -> ModelInfo:
    return ModelInfo(MODEL, max_model_len=20_000, vocab_size=400, chat=ChatFormat(template, {}))


def test_a_model_whose_calls_cannot_be_read_gets_no_tools() -> None:
    template = "{{ messages[0].content }}{{ tools | tojson }}"
    engine = fake_engine(model=model_with(template))
    error = error_of(ask(engine, 400))
    assert error["param"] == "tools"
    assert "--tool-call-parser" in error["message"]
    with client_of(engine, ServerConfig(answers=Answers(tool_call_parser="hermes"))) as client:
        answer = client.post(PATH, json={"model": MODEL, "messages": [HI], "tools": [F], "max_tokens": 1})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "template", ["{{ messages[0].content }}", "{% if tools %}{{ raise_exception('x') }}{% endif %}."]
)
def test_a_template_that_does_not_show_tools_is_given_none(template: str) -> None:
    sign = '{# <tool_call>{"name": 1, "arguments": 2} #}'
    engine = tool_engine("hermes", "", model=model_with(sign + template))
    assert "does not show tools" in error_of(ask(engine, 400))["message"]


G = {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "properties": {}}}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    """OpenAI's choice among tools."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_only_allowed_tools_are_shown_and_called() -> None:
    engine = tool_engine("hermes", "Hello")
    ask(engine, tools=[F, G], tool_choice=allowed("auto", "g"))
    assert '"name": "g"' in prompt_of(engine)
    assert '"name": "f"' not in prompt_of(engine)
    assert engine.requests[-1].params.grammar is None
    ask(engine, tools=[F, G], tool_choice=allowed("required", "g"))
    grammar = engine.requests[-1].params.grammar
    assert grammar is not None
    ask(engine, tools=[G], tool_choice="required")
    assert grammar == engine.requests[-1].params.grammar
    ask(engine, tools=[F, G], tool_choice=allowed("auto", "g", "f", "g"))
    ask(engine, tools=[F, G], tool_choice=allowed("auto"))
    assert '"name": "g"' not in prompt_of(engine)


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        (allowed("auto", "nobody"), "tool_choice.allowed_tools.tools"),
        (allowed("none", "f"), "tool_choice.allowed_tools.mode"),
        (allowed("required"), "tool_choice"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}, "tool_choice.allowed_tools.tools"),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, "tool_choice.allowed_tools"),
    ],
)
def test_a_wrong_choice_among_tools_is_refused_by_name(choice: dict[str, Any], param: str) -> None:
    assert error_of(ask(tool_engine("hermes", "Hello"), 400, tools=[F, G], tool_choice=choice))["param"] == param


CUSTOM = {"type": "custom", "custom": {"name": "shell", "description": "Runs a command."}}


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"tools": [CUSTOM]}, "tools.0", "custom tools are not supported, and 'shell' is one"),
        ({"tools": [WEATHER, {"type": "web_search"}]}, "tools.1", "web_search tools are not supported"),
        ({"tools": [{"type": "custom", "name": "shell"}]}, "tools.0", "'shell' is one"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "custom", "custom": {"name": "shell"}}},
            "tool_choice.type",
            "custom tools are not supported",
        ),
        (
            {"messages": [HI, {"role": "assistant", "tool_calls": [{"id": "a", **CUSTOM}]}]},
            "messages.1.tool_calls.0.type",
            "custom tools are not supported",
        ),
    ],
)
def test_tools_of_other_kinds_are_refused_by_their_names(fields: dict[str, Any], field: str, words: str) -> None:
    with client_of(tool_engine("hermes", "Hi")) as client:
        answer = client.post(PATH, json={"messages": [HI], **fields})
    error = error_of(answer.json())
    assert (answer.status_code, error["param"]) == (400, field)
    assert words in error["message"]


@pytest.mark.parametrize("logprobs", [None, False, True])
def test_no_alternatives_may_be_asked_for_alone(logprobs: bool | None) -> None:
    with client_of(tool_engine("hermes", "Hi")) as client:
        answer = client.post(PATH, json={"messages": [HI], "logprobs": logprobs, "top_logprobs": 0})
    assert answer.status_code == 200, answer.text
    assert bool(answer.json()["choices"][0]["logprobs"]) is bool(logprobs)
