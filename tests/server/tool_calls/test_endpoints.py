"""Calls in an answer of /v1/chat/completions: found in the model's text, streamed, cut off, and demanded."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from jaxgen.server.app import create_app
from jaxgen.server.tool_calls.formats import FORMATS
from jaxgen.server.tool_calls.grammar import either
from tests.server.tool_calls.test_parser import TEXTS, answered, written
from tests.support.fakes import MODEL
from tests.support.live_server import serve
from tests.support.server_app import client_of, error_of
from tests.support.tool_engines import tool_engine
from tests.support.tool_requests import HI, PARIS, WEATHER, F, ask

KINDS = sorted(FORMATS)


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


@settings(max_examples=15, deadline=None)
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
        {"name": "get_weather", "arguments": answered(kind, PARIS[1])},
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


@pytest.mark.parametrize("stop", ["\n", "}", ["Par"], ["</tool_call>", "<"], [" ", "[TOOL_CALLS] [{"], ["</function>"]])
@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("kind", ["hermes", "qwen3_xml", "mistral"])
def test_stop_strings_are_not_searched_in_calls(kind: str, choice: str, stop: Any) -> None:
    """Under auto those that begin as a call does are found before one is known."""
    if choice == "auto" and isinstance(stop, list) and any(one[0] in "<[" for one in stop):
        return
    calls = [PARIS, ("f", "{}")]
    text = written(kind, calls)
    whole = ask(tool_engine(kind, text), stop=stop, tool_choice=choice)["choices"][0]
    message, reason = joined(ask(tool_engine(kind, text), stop=stop, tool_choice=choice, stream=True))
    assert without_ids(message) == without_ids(whole["message"])
    assert reason == whole["finish_reason"] == "tool_calls"
    assert [one["function"]["arguments"] for one in message["tool_calls"]] == [arguments for _, arguments in calls]


@pytest.mark.parametrize(
    ("before", "after", "stop", "content", "num_calls"),
    [
        ("Hello\nthere", "", "\n", "Hello", 0),
        ("Let me.\n\n", "", "\n\nUser:", "Let me.", 1),
        ("", "\n\nUser: hm", "\n\nUser:", None, 1),
        ("", " and STOP x", ["STOP"], " and ", 1),
        ("I see <tool and STOP", "", ["STOP"], "I see <tool and ", 0),
    ],
)
def test_stop_strings_are_searched_around_calls(
    before: str, after: str, stop: Any, content: Any, num_calls: int
) -> None:
    engine = tool_engine("hermes", before + written("hermes", [PARIS]) + after)
    (choice,) = ask(engine, stop=stop)["choices"]
    assert choice["message"]["content"] == content
    assert len(choice["message"].get("tool_calls", ())) == num_calls


def test_without_parallel_calls_an_answer_ends_after_the_first() -> None:
    text = written("mistral", [PARIS, ("f", "{}")])
    engine = tool_engine("mistral", text)
    answer = ask(engine, parallel_tool_calls=False)
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert answer["usage"]["completion_tokens"] < len(text.encode())
    assert engine.aborted == [engine.requests[0].request_id], "the engine is told that no more is wanted"


@pytest.mark.parametrize("stop", [None, "}x"])
def test_a_first_call_that_ends_with_the_last_token_is_complete(stop: str | None) -> None:
    """``}x``: the end of the call is held back until no token follows."""
    engine = tool_engine("hermes", written("hermes", [PARIS]))
    most = ask(engine, parallel_tool_calls=False)["usage"]["completion_tokens"]
    (choice,) = ask(engine, parallel_tool_calls=False, stop=stop, max_tokens=most)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == PARIS[1]


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


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
@pytest.mark.parametrize("kind", ["hermes", "mistral"])
def test_a_demanded_call_that_is_cut_short_shows_no_text(kind: str, choice: Any) -> None:
    """Before its name, in its arguments, and after them: every length of an answer, whole and streamed."""
    calls = [PARIS] if isinstance(choice, dict) else [PARIS, ("f", "{}")]
    engine = tool_engine(kind, written(kind, calls))
    fields = {"tool_choice": choice}
    for most in (2, 12, 30, 50, 70, 73, 80, 90):
        whole = ask(engine, max_tokens=most, **fields)["choices"][0]
        message, reason = joined(ask(engine, max_tokens=most, stream=True, **fields))
        for said, ended in ((whole["message"], whole["finish_reason"]), (message, reason)):
            assert not said["content"]
            assert ended in ("length", "tool_calls")
        assert without_ids(message)["tool_calls"] == without_ids(whole["message"])["tool_calls"]


def test_a_demanded_call_that_is_cut_short_is_no_message_at_responses() -> None:
    engine = tool_engine("hermes", written("hermes", [PARIS, ("f", "{}")]))
    tools = [{"type": "function", **tool["function"]} for tool in (F, WEATHER)]
    fields = {"model": MODEL, "input": "Hi", "tools": tools, "tool_choice": "required"}
    with client_of(engine) as client:
        for most in (20, 60, 73, 80):
            answer = client.post("/v1/responses", json={**fields, "max_output_tokens": most})
            assert answer.json()["status"] == "incomplete"
            streamed = client.post("/v1/responses", json={**fields, "max_output_tokens": most, "stream": True})
            assert "tool_call>" not in answer.text + streamed.text
            kinds = [item["type"] for item in answer.json()["output"]]
            assert kinds == (["message"] if most == 20 else ["function_call"])
            assert answer.json()["output"][0].get("content", [{"text": ""}])[0]["text"] == ""


def test_nothing_is_demanded_under_auto() -> None:
    engine = tool_engine("hermes", "Hello")
    ask(engine, tool_choice="auto", messages=[HI])
    assert engine.requests[0].params.grammar is None


def test_an_answer_of_a_format_may_be_a_call() -> None:
    engine = tool_engine("hermes", "{}")
    of_format = {"response_format": {"type": "json_object"}}
    cases: list[dict[str, Any]] = [{**of_format, "tools": None}, of_format, {**of_format, "tool_choice": "required"}]
    grammars = []
    for fields in cases:
        ask(engine, **fields)
        grammar = engine.requests[-1].params.grammar
        assert grammar is not None
        grammars.append(grammar)
    answer, both, calls = grammars
    assert (both.text, both.source) == (either(answer.text, calls.text), "response_format")
    assert calls.source == "tools"
    error = error_of(ask(engine, 400, structured_outputs={"choice": ["a"]}))
    assert error["param"] == "structured_outputs"


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
