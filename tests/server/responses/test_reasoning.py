"""Reasoning at /v1/responses: an item of its own before the message, its events, and what is sent back."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response

from tests.server.api.test_reasoning import ENDS, FINAL, OPEN, THOUGHT, thinks
from tests.server.responses.test_responses import PARIS, PATH, WEATHER, F, ask, built, plain
from tests.server.tool_calls.test_parser import written
from tests.support.fakes import MODEL
from tests.support.server_app import client_of
from tests.support.tool_engines import prompt_of
from tests.support.tool_templates import BY_REASONING

TEXT = f"<think>\n{THOUGHT}\n</think>\n\nHello"
HARMONY_TEXT = f"<|channel|>analysis<|message|>{THOUGHT}{ENDS}{FINAL}Hello"


@pytest.mark.parametrize(("parser", "text"), [("qwen3", TEXT), ("openai_gptoss", HARMONY_TEXT)])
def test_reasoning_is_an_item_before_the_message(parser: str, text: str) -> None:
    response = ask(thinks(text, parser))
    Response.model_validate(response)
    thought, said = response["output"]
    assert thought["id"].startswith("rs_")
    assert {**thought, "id": ""} == {
        "id": "",
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": THOUGHT}],
    }
    assert said["content"] == [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}]
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > len(THOUGHT)


def test_its_events_have_the_names_of_openai() -> None:
    kinds = [event["type"] for event in ask(thinks("<think>ab</think>c"), stream=True)]
    assert [kind.removeprefix("response.") for kind in kinds] == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("reasoning_text.delta", "reasoning_text.delta", "reasoning_text.done", "content_part.done"),
        *("output_item.done", "output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done", "completed"),
    ]


def test_it_may_be_cut_off() -> None:
    response = ask(thinks(TEXT), max_output_tokens=6)
    (item,) = response["output"]
    assert (response["status"], item["type"], item["status"]) == ("incomplete", "reasoning", "incomplete")
    assert "Hm, é.".startswith(item["content"][0]["text"])


def test_calls_come_after_it() -> None:
    fields: dict[str, Any] = {"tools": [F, WEATHER]}
    response = ask(thinks(TEXT + written("hermes", [PARIS])), **fields)
    assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call"]


@settings(max_examples=15, deadline=None)
@given(
    parser=st.sampled_from(sorted(BY_REASONING)),
    text=st.sampled_from([TEXT, HARMONY_TEXT, "Hello", "</think>x", TEXT + written("hermes", [PARIS])]),
    most=st.sampled_from([None, 8, 25]),
    fields=st.sampled_from([{}, OPEN]),
)
def test_events_build_up_the_whole_response(parser: str, text: str, most: int | None, fields: dict[str, Any]) -> None:
    asked = {"tools": [F, WEATHER], "max_output_tokens": most, "top_logprobs": 1, **fields}
    whole = ask(thinks(text, parser), **asked)
    Response.model_validate(whole)
    events = ask(thinks(text, parser), stream=True, **asked)
    assert plain(events[-1]["response"]) == plain(whole)
    assert built(events) == events[-1]["response"]["output"]


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("qwen3", TEXT),
        ("openai_gptoss", HARMONY_TEXT),
        ("openai_gptoss", f"{FINAL}Hel{ENDS}<|channel|>analysis<|message|>Hm{ENDS}{FINAL}lo"),
    ],
)
def test_log_probabilities_are_of_the_messages_text(parser: str, text: str) -> None:
    response = ask(thinks(text, parser), top_logprobs=1)
    said = [item["content"][0] for item in response["output"] if item["type"] == "message"]
    assert "".join(part["text"] for part in said) == "Hello"
    for part in said:
        assert "".join(entry["token"] for entry in part["logprobs"]) == part["text"]


def test_it_is_not_sent_back_to_the_model() -> None:
    engine = thinks(TEXT)
    with client_of(engine) as client:
        first = client.post(PATH, json={"model": MODEL, "input": "Hi"}).json()
        more = {"role": "user", "content": "And"}
        referred = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
        prompts = []
        for fields in (
            {"input": [more], "previous_response_id": first["id"]},
            {"input": [{"role": "user", "content": "Hi"}, *first["output"], more]},
            {"input": [{"role": "user", "content": "Hi"}, *referred, more]},
        ):
            answer = client.post(PATH, json={"model": MODEL, **fields})
            assert answer.status_code == 200, answer.text
            prompts.append(prompt_of(engine))
        kept = client.get(f"{PATH}/{first['id']}").json()
    assert len(set(prompts)) == 1
    assert "assistant\nHello<|im_end|>" in prompts[0]
    assert "Hm" not in prompts[0]
    assert kept["output"] == first["output"]
