"""Tools in /v1/chat/completions: what the model is shown, what it is read to call, and how that is told."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from jaxgen.request import ChatFormat, ModelInfo
from server.app import create_app
from server.config import ServerConfig
from tests.fakes import MODEL, FakeEngine
from tests.live_server import serve
from tests.server_app import client_of, error_of, fake_engine, stream_chunks
from tests.test_tool_calls import KINDS, TEXTS, written
from tests.tool_engines import prompt_of, tool_engine
from tests.tool_templates import HERMES

PATH = "/v1/chat/completions"
F = {"type": "function", "function": {"name": "f"}}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
HI = {"role": "user", "content": "Hi"}
PARIS = ("get_weather", '{"city": "Paris 😀}"}')


def ask(engine: FakeEngine, status: int = 200, **fields: Any) -> Any:
    with client_of(engine) as client:
        answer = client.post(PATH, json={"model": MODEL, "messages": [HI], "tools": [F, WEATHER], **fields})
    assert answer.status_code == status, answer.text
    return stream_chunks(answer.text) if fields.get("stream") and status == 200 else answer.json()


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    calls = [{name: value for name, value in call.items() if name != "id"} for call in message.get("tool_calls", ())]
    return {**message, "tool_calls": calls}


def joined(chunks: list[Any]) -> tuple[dict[str, Any], str | None]:
    """The message that a client makes of the deltas of choice 0, and its finish reason."""
    message: dict[str, Any] = {}
    reason = None
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert reason is None, "nothing follows a finish reason"
        reason = choice["finish_reason"]
        delta = dict(choice["delta"])
        for call in delta.pop("tool_calls", ()):
            calls = message.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                calls.append({name: call[name] for name in ("id", "type")} | {"function": dict(call["function"])})
            else:
                assert set(call) == {"index", "function"}
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        for name, value in delta.items():
            message[name] = value if message.get(name) is None else message[name] + (value or "")
    return message | {"refusal": None}, reason


@settings(max_examples=50, deadline=None)
@example(kind="hermes", special=True, text=None, several=True, most=10_000, logprobs=True)
@given(
    kind=st.sampled_from(KINDS),
    special=st.booleans(),
    text=TEXTS | st.none(),
    several=st.booleans(),
    most=st.sampled_from([10_000, 30]),
    logprobs=st.booleans(),
)
def test_streamed_deltas_join_to_the_whole_message(
    kind: str, special: bool, text: str | None, several: bool, most: int, logprobs: bool
) -> None:
    """``text`` None: calls and nothing else."""
    text = written(kind, [PARIS, ("f", "{}")]) if text is None else text
    fields = {"parallel_tool_calls": several, "max_tokens": most, "logprobs": logprobs}
    whole = ask(tool_engine(kind, text, special=special), **fields)["choices"][0]
    chunks = ask(tool_engine(kind, text, special=special), stream=True, **fields)
    message, reason = joined(chunks)
    assert without_ids(message) == without_ids(whole["message"])
    assert reason == whole["finish_reason"]
    assert (reason == "tool_calls") <= ("tool_calls" in message)
    if logprobs:
        entries = [one for c in chunks if c["choices"][0]["logprobs"] for one in c["choices"][0]["logprobs"]["content"]]
        assert entries == whole["logprobs"]["content"]


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_calls_are_found_whether_or_not_markers_are_special_tokens(kind: str, special: bool) -> None:
    (choice,) = ask(tool_engine(kind, written(kind, [PARIS, ("f", "{}")]), special=special))["choices"]
    message = choice["message"]
    assert (choice["finish_reason"], message["content"]) == ("tool_calls", None)
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "get_weather", "arguments": PARIS[1]},
        {"name": "f", "arguments": "{}"},
    ]
    ids = {call["id"] for call in message["tool_calls"]}
    assert len(ids) == 2
    assert all(len(one) == 9 for one in ids) == kind.startswith("mistral")


def test_text_without_a_call_is_content() -> None:
    for text in ("Hello", "", "<tool_call>no", " \n"):
        (choice,) = ask(tool_engine("hermes", text))["choices"]
        assert choice["message"] == {"role": "assistant", "content": text, "refusal": None}
        assert choice["finish_reason"] == "stop"


def test_an_answer_cut_off_in_a_call_says_so() -> None:
    engine = tool_engine("hermes", written("hermes", [PARIS]))
    (choice,) = ask(engine, max_tokens=60)["choices"]
    assert choice["finish_reason"] == "length"
    arguments = choice["message"]["tool_calls"][0]["function"]["arguments"]
    assert arguments
    assert PARIS[1].startswith(arguments)


@pytest.mark.parametrize(("stop", "reason"), [("Par", "stop"), ("</tool", "tool_calls")])
def test_an_answer_stopped_in_a_call_has_not_called(stop: str, reason: str) -> None:
    (choice,) = ask(tool_engine("hermes", written("hermes", [PARIS])), stop=stop)["choices"]
    assert choice["message"]["tool_calls"]
    assert choice["finish_reason"] == reason


def test_without_parallel_calls_an_answer_ends_after_the_first() -> None:
    text = written("mistral", [PARIS, ("f", "{}")])
    engine = tool_engine("mistral", text)
    answer = ask(engine, parallel_tool_calls=False)
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert answer["usage"]["completion_tokens"] < len(text.encode())
    assert engine.aborted == [engine.requests[0].request_id], "the engine is told that no more is wanted"


def test_each_choice_has_calls_of_its_own() -> None:
    answer = ask(tool_engine("llama3_json", written("llama3_json", [PARIS])), n=2)
    calls = [choice["message"]["tool_calls"][0] for choice in answer["choices"]]
    assert calls[0]["id"] != calls[1]["id"]
    assert calls[0]["function"] == calls[1]["function"]


@pytest.mark.parametrize(
    ("choice", "allowed", "several"),
    [
        ("required", ["f", "get_weather"], True),
        ({"type": "function", "function": {"name": "f"}}, ["f"], False),
    ],
)
def test_a_call_is_demanded_by_a_grammar(choice: Any, allowed: list[str], several: bool) -> None:
    engine = tool_engine("hermes", written("hermes", [PARIS]))
    tool_choice = {"tool_choice": choice}
    (answer,) = ask(engine, **tool_choice)["choices"]
    grammar = engine.requests[0].params.grammar
    assert grammar is not None
    assert grammar.source == "tools"
    checker = LLTokenizer(engine.tokenizer.to_json() or "", eos_token=1)
    for calls, expected in (
        ([("f", "{}")], True),
        ([PARIS], "get_weather" in allowed),
        ([("f", "{}"), ("f", "{}")], several),
    ):
        matcher = LLMatcher(checker, grammar.text)
        tokens = engine.tokenizer.encode(written("hermes", calls))
        assert (matcher.consume_tokens(tokens) and matcher.is_accepting()) == expected
    assert answer["finish_reason"] == "tool_calls"
    assert error_of(ask(engine, 400, ignore_eos=True, **tool_choice))["param"] == "ignore_eos"


def test_nothing_is_demanded_under_auto() -> None:
    engine = tool_engine("hermes", "Hello")
    ask(engine, tool_choice="auto", messages=[HI])
    assert engine.requests[0].params.grammar is None


def test_tools_are_shown_to_the_model_unless_there_is_nothing_to_choose() -> None:
    engine = tool_engine("hermes", written("hermes", [PARIS]))
    ask(engine)
    shown = json.dumps(WEATHER)
    assert shown in prompt_of(engine)
    assert '{"name": "f", "parameters": {"type": "object", "properties": {}}}' in prompt_of(engine)
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
    assert '{"city": "Paris 😀}"}' in prompt_of(engine)
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
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a\n"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}]}, "tools.0.function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]}, "tools"),
        ({"tools": [F, F]}, "tools"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
        ({"messages": [HI, {"role": "assistant", "tool_calls": []}]}, "messages.1.content"),
        ({"messages": call_of(function={"name": "f", "arguments": "{"})}, "messages.1.tool_calls.0.function.arguments"),
        (
            {"messages": call_of(function={"name": "f", "arguments": '{"a": NaN}'})},
            "messages.1.tool_calls.0.function.arguments",
        ),
        ({"messages": call_of(function={"name": "f", "arguments": "3"})}, "messages.1.tool_calls.0.function.arguments"),
        ({"messages": call_of(type="custom")}, "messages.1.tool_calls.0.type"),
        ({"messages": [{**HI, "tool_calls": call_of()[1]["tool_calls"]}]}, "messages.0.tool_calls"),
        ({"messages": [*call_of(), {"role": "tool", "content": "x"}]}, "messages.2.tool_call_id"),
        ({"messages": [*call_of(), {"role": "tool", "content": "x", "tool_call_id": "b"}]}, "messages.2.tool_call_id"),
        ({"messages": [{**HI, "tool_call_id": "abcdefghi"}]}, "messages.0.tool_call_id"),
        ({"messages": [{**HI, "refusal": "no"}]}, "messages.0.refusal"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    engine = tool_engine("hermes", "Hello")
    assert error_of(ask(engine, 400, **fields))["param"] == param
    assert engine.requests == []


def test_the_templates_own_refusal_is_told() -> None:
    engine = tool_engine("mistral", "Hello")
    history = [*call_of(id="long-enough"), {"role": "tool", "content": "x", "tool_call_id": "long-enough"}]
    assert "ids have 9 characters" in ask(engine, 400, messages=history)["error"]["message"]


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
    with client_of(engine, ServerConfig(tool_call_parser="hermes")) as client:
        answer = client.post(PATH, json={"model": MODEL, "messages": [HI], "tools": [F], "max_tokens": 1})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "template", ["{{ messages[0].content }}", "{% if tools %}{{ raise_exception('x') }}{% endif %}."]
)
def test_a_template_that_does_not_show_tools_is_given_none(template: str) -> None:
    sign = '{# <tool_call>{"name": 1, "arguments": 2} #}'
    engine = tool_engine("hermes", "", model=model_with(sign + template))
    assert "does not show tools" in error_of(ask(engine, 400))["message"]


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    text = "I look." + written("hermes", [PARIS, ("f", '{"a": [1, 2]}')])
    with (
        serve(create_app(tool_engine("hermes", text))) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made,
    ):
        yield made


def test_the_openai_client_gets_calls_and_sends_them_back(client: openai.OpenAI) -> None:
    messages: Any = [HI]
    tools: Any = [F, WEATHER]
    message = client.chat.completions.create(model=MODEL, messages=messages, tools=tools).choices[0].message
    assert message.content == "I look."
    assert message.tool_calls is not None
    first = message.tool_calls[0]
    assert first.type == "function"
    assert (first.function.name, json.loads(first.function.arguments)) == ("get_weather", {"city": "Paris 😀}"})
    messages += [message, *({"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in message.tool_calls)]
    again = client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
    assert again.choices[0].finish_reason == "tool_calls"


def test_the_openai_client_joins_a_stream(client: openai.OpenAI) -> None:
    messages: Any = [HI]
    tools: Any = [F, WEATHER]
    with client.chat.completions.stream(model=MODEL, messages=messages, tools=tools) as stream:
        choice = stream.get_final_completion().choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    assert [call.function.arguments for call in choice.message.tool_calls or ()] == [PARIS[1], '{"a": [1, 2]}']
