"""Log-probabilities of /v1/responses, and the sampling fields that it has beside OpenAI's."""

from typing import Any

import pytest
from openai.types.responses import Response

from jaxgen.core.sampling_params import SamplingParams
from tests.server.responses.test_responses import PARIS, WEATHER, F, ask, built
from tests.server.tool_calls.test_parser import written
from tests.support.fakes import MODEL
from tests.support.server_app import client_of, error_of
from tests.support.tool_engines import prompt_of, tool_engine

INCLUDE = ["message.output_text.logprobs"]
TEXT = "Well 😀. "


def logprobs_of(response: dict[str, Any]) -> list[Any]:
    """Of the first item's text."""
    found: list[Any] = response["output"][0]["content"][0]["logprobs"]
    return found


@pytest.mark.parametrize("calls", [[], [PARIS, ("f", "{}")]])
@pytest.mark.parametrize("most", [None, 7])
def test_whole_and_streamed_text_has_them_all(calls: list[tuple[str, str]], most: int | None) -> None:
    """Of the text, that is: not of calls, of the white space before them, or of the end."""
    text = TEXT + (written("hermes", calls) if calls else "")
    fields: dict[str, Any] = {"include": INCLUDE, "top_logprobs": 2, "tools": [F, WEATHER], "max_output_tokens": most}
    whole = ask(tool_engine("hermes", text), **fields)
    Response.model_validate(whole)
    entries = logprobs_of(whole)
    said = whole["output"][0]["content"][0]["text"]
    spelt = bytes(byte for entry in entries for byte in entry["bytes"])
    assert spelt.startswith(said.encode()) if most is None else spelt == TEXT.encode()[: len(spelt)]
    if most is None:
        assert said == TEXT.rstrip() if calls else TEXT
        assert spelt == said.encode()
    assert all(len(entry["top_logprobs"]) == 2 and entry["logprob"] < 0 for entry in entries)
    assert all(isinstance(one["bytes"], list) for entry in entries for one in (entry, *entry["top_logprobs"]))
    events = ask(tool_engine("hermes", text), stream=True, **fields)
    streamed = [entry for event in events if event["type"].endswith("text.delta") for entry in event["logprobs"]]
    assert streamed == entries == logprobs_of(events[-1]["response"])
    (done,) = [event for event in events if event["type"] == "response.output_text.done"]
    assert done["logprobs"] == entries
    assert [item["type"] for item in built(events)] == [item["type"] for item in whole["output"]]


def test_text_after_a_call_has_none() -> None:
    """Longer than the call, whose characters are none of the text's."""
    text = f"Well. {written('hermes', [PARIS])} {'Done. ' * 40}"
    fields: dict[str, Any] = {"include": INCLUDE, "tools": [F, WEATHER]}
    whole = ask(tool_engine("hermes", text), **fields)
    assert [item["type"] for item in whole["output"]] == ["message", "function_call", "message"]
    assert (len(logprobs_of(whole)), whole["output"][2]["content"][0]["logprobs"]) == (len("Well."), [])
    events = ask(tool_engine("hermes", text), stream=True, **fields)
    assert [item.get("content") for item in built(events)] == [item.get("content") for item in whole["output"]]


@pytest.mark.parametrize(
    ("fields", "alternatives"),
    [({}, None), ({"top_logprobs": 0}, None), ({"include": INCLUDE}, 0), ({"top_logprobs": 3}, 3)],
)
def test_they_are_there_for_who_asks(fields: dict[str, Any], alternatives: int | None) -> None:
    response = ask(tool_engine("hermes", "Hi"), **fields)
    counts = {len(entry["top_logprobs"]) for entry in logprobs_of(response)}
    assert counts == (set() if alternatives is None else {alternatives})
    assert response["top_logprobs"] == fields.get("top_logprobs", 0)


def test_a_response_with_them_can_be_sent_back() -> None:
    engine = tool_engine("hermes", "Hello")
    first = ask(engine, include=INCLUDE, top_logprobs=2)
    ask(engine, input=[{"role": "user", "content": "Hi"}, *first["output"], {"role": "user", "content": "And"}])
    assert "assistant\nHello<|im_end|>" in prompt_of(engine)


def test_sampling_fields_reach_the_engine() -> None:
    engine = tool_engine("hermes", "Hello")
    fields: dict[str, Any] = {
        "frequency_penalty": 0.25,
        "ignore_eos": True,
        "min_p": 0.125,
        "min_tokens": 2,
        "presence_penalty": 0.5,
        "repetition_penalty": 1.5,
        "seed": 7,
        "top_k": 5,
    }
    ask(engine, **fields, logit_bias={"3": 1}, stop="lo", stop_token_ids=[4], priority=3, max_output_tokens=9)
    params: SamplingParams = engine.requests[-1].params
    assert {name: getattr(params, name) for name in fields} == fields
    assert (params.logit_bias, params.stop, params.stop_token_ids) == ({3: 1}, ("lo",), (4,))
    assert (engine.requests[-1].priority, params.logprobs) == (3, None)
    ask(engine, structured_outputs={"choice": ["a"]})
    assert engine.requests[-1].params.grammar is not None
    response = ask(engine, stop=["lo"])
    assert response["output"][0]["content"][0]["text"] == "Hel"


def test_variables_of_the_template_are_set() -> None:
    error = error_of(ask(tool_engine("hermes", "Hello"), 400, chat_template_kwargs={"messages": []}))
    assert error["param"] == "chat_template_kwargs"
    ask(tool_engine("hermes", "Hello"), chat_template_kwargs={"enable_thinking": False})


def test_input_tokens_are_counted_without_an_answer() -> None:
    engine = tool_engine("hermes", "Hello")
    for fields in (
        {"input": "Hi"},
        {"input": [{"role": "user", "content": "Hi"}], "instructions": "Be brief.", "tools": [F, WEATHER]},
        {"input": "Hi", "tools": [F], "tool_choice": "none", "text": {"format": {"type": "text"}}},
    ):
        used = ask(engine, **fields)["usage"]["input_tokens"]
        asked = len(engine.requests)
        with client_of(engine) as client:
            answer = client.post("/v1/responses/input_tokens", json={"model": MODEL, **fields})
        assert answer.json() == {"object": "response.input_tokens", "input_tokens": used}
        assert len(engine.requests) == asked


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": "x" * 30_000}, "input"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"temperature": 1}, "temperature"),
        ({"personality": "friendly"}, "personality"),
        ({"truncation": "auto"}, "truncation"),
    ],
)
def test_input_tokens_of_what_would_be_refused_are_not_counted(fields: dict[str, Any], param: str) -> None:
    with client_of(tool_engine("hermes", "Hello")) as client:
        answer = client.post("/v1/responses/input_tokens", json={"model": MODEL, "input": "Hi", **fields})
    assert (answer.status_code, error_of(answer.json())["param"]) == (400, param)
