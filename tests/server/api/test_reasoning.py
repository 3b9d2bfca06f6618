"""What a model thinks before it answers, at /v1/chat/completions: whole and streamed, left out, cut, and counted."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from jaxgen.server.config import Answers, ServerConfig
from tests.server.tool_calls.test_endpoints import joined, without_ids
from tests.server.tool_calls.test_parser import written
from tests.support.fakes import MODEL, FakeEngine
from tests.support.server_app import TOKENIZER, client_of
from tests.support.tool_engines import HARMONY, tool_engine
from tests.support.tool_requests import HI, PARIS, PATH, ask
from tests.support.tool_templates import BY_REASONING

THOUGHT = "Hm, é.\n\nYes < no."
OPEN = {"chat_template_kwargs": {"enable_thinking": True}}
CLOSED = {"chat_template_kwargs": {"enable_thinking": False}}
ENDS = "<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"


def thinks(text: str, parser: str = "qwen3", **fields: Any) -> FakeEngine:
    kind = HARMONY if parser == "openai_gptoss" else "hermes"
    return tool_engine(kind, text, template=BY_REASONING[parser], **fields)


def answer(engine: FakeEngine, **fields: Any) -> Any:
    return ask(engine, **{"tools": None, **fields})


def both(engine: FakeEngine, **fields: Any) -> tuple[dict[str, Any], str]:
    """The message and its finish reason, which are the same whole and streamed."""
    (whole,) = (found := answer(engine, **fields))["choices"]
    ChatCompletion.model_validate(found)
    chunks = answer(engine, stream=True, **fields)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    message, reason = joined(chunks)
    said = without_ids(whole["message"])
    assert without_ids(message) == {**said, "content": said["content"]}
    assert reason == whole["finish_reason"]
    return whole["message"], whole["finish_reason"]


def test_reasoning_has_fields_of_its_own() -> None:
    message, reason = both(thinks(f"<think>\n{THOUGHT}\n</think>\n\nHello"))
    assert message == {
        "role": "assistant",
        "content": "Hello",
        "refusal": None,
        "reasoning_content": THOUGHT,
        "reasoning": THOUGHT,
    }
    assert reason == "stop"


@pytest.mark.parametrize(
    ("parser", "fields", "text", "thought", "content"),
    [
        ("qwen3", OPEN, f"{THOUGHT}</think>Hello", THOUGHT, "Hello"),
        ("qwen3", CLOSED, "Hello</think>", None, "Hello</think>"),
        ("qwen3", {}, "Hello", None, "Hello"),
        ("deepseek_r1", {}, f"{THOUGHT}</think>Hello", THOUGHT, "Hello"),
        ("deepseek_r1", {}, f"<think>{THOUGHT}</think>Hello", THOUGHT, "Hello"),
        ("openai_gptoss", {}, f"<|channel|>analysis<|message|>{THOUGHT}{ENDS}{FINAL}Hello", THOUGHT, "Hello"),
        ("openai_gptoss", {}, f"{FINAL}Hello", None, "Hello"),
        ("gemma4", {}, f"<|channel>thought\n{THOUGHT}\n<channel|>Hello", THOUGHT, "Hello"),
        ("gemma4", {}, "Hello", None, "Hello"),
        ("gemma4", OPEN, f"{THOUGHT}<channel|>Hello", THOUGHT, "Hello"),
        ("gemma4", CLOSED, "Hello<channel|>", None, "Hello<channel|>"),
    ],
)
def test_where_it_begins(parser: str, fields: dict[str, Any], text: str, thought: str | None, content: str) -> None:
    message, _ = both(thinks(text, parser), **fields)
    assert (message.get("reasoning_content"), message["content"]) == (thought, content)


@pytest.mark.parametrize("special", [True, False])
def test_marks_are_seen_whether_or_not_they_are_special_tokens(special: bool) -> None:
    message, _ = both(thinks(f"<think>{THOUGHT}</think>Hello", special=special))
    assert (message["reasoning_content"], message["content"]) == (THOUGHT, "Hello")


@pytest.mark.parametrize("skip", [True, False])
def test_shown_special_tokens_are_no_marks(skip: bool) -> None:
    text = f"<|channel|>analysis<|message|>{THOUGHT}{ENDS}{FINAL}Hel<think>lo"
    message, _ = both(thinks(text, "openai_gptoss"), skip_special_tokens=skip)
    assert (message["reasoning_content"], message["content"]) == (THOUGHT, "Hello" if skip else "Hel<think>lo")


def test_a_message_that_goes_on_begins_where_it_is() -> None:
    fields = {"continue_final_message": True}
    for said, inside in (("<think>\nHm", True), ("<think>\nHm</think>So", False), ("So", False)):
        messages = [HI, {"role": "assistant", "content": said}]
        message, _ = both(thinks(" and.</think>Hello"), messages=messages, **fields)
        assert message.get("reasoning_content") == ("and." if inside else None)
    messages = [HI, {"role": "assistant", "content": "So"}]
    message, _ = both(thinks(" it is", "openai_gptoss"), messages=messages, **fields)
    assert message["content"] == " it is"


@pytest.mark.parametrize("parser", ["qwen3", "openai_gptoss"])
def test_it_is_left_out_for_who_wants_none(parser: str) -> None:
    text = {
        "qwen3": f"<think>{THOUGHT}</think>Hello",
        "openai_gptoss": f"<|channel|>analysis<|message|>{THOUGHT}{ENDS}{FINAL}Hello",
    }[parser]
    message, _ = both(thinks(text, parser), include_reasoning=False)
    assert message == {"role": "assistant", "content": "Hello", "refusal": None}
    chunks = answer(thinks(text, parser), include_reasoning=False, stream=True)
    assert all(chunk["choices"][0]["delta"] for chunk in chunks[:-1]), "no chunk says nothing"


@pytest.mark.parametrize("parser", ["qwen3", "openai_gptoss"])
def test_an_answer_cut_anywhere_is_the_beginning_of_the_whole(parser: str) -> None:
    text = {
        "qwen3": f"<think>\n{THOUGHT}\n</think>\n\nHello",
        "openai_gptoss": f"<|channel|>analysis<|message|>{THOUGHT}{ENDS}{FINAL}Hello",
    }[parser]
    engine = thinks(text, parser)
    for most in range(1, 60):
        message, reason = both(engine, max_tokens=most)
        thought, content = message.get("reasoning_content", ""), message["content"]
        assert THOUGHT.startswith(thought.removesuffix("\ufffd"))
        assert "Hello".startswith(content or "")
        assert content is not None or thought
        if reason == "stop":
            break
    assert (thought, content) == (THOUGHT, "Hello")


def test_an_answer_cut_within_it_has_no_content() -> None:
    message, reason = both(thinks(f"<think>{THOUGHT}</think>Hello"), max_tokens=4)
    assert (message["content"], message["reasoning_content"], reason) == (None, "Hm,", "length")


def test_stop_strings_end_it_too() -> None:
    message, reason = both(thinks(f"<think>{THOUGHT}</think>Hello"), stop=["Yes"])
    assert (message["content"], message["reasoning_content"], reason) == (None, "Hm, é.", "stop")
    message, _ = both(thinks(f"<think>{THOUGHT}</think>Hello"), stop=["ell"])
    assert (message["content"], message["reasoning_content"]) == ("H", THOUGHT)


def test_calls_come_after_it() -> None:
    text = f"<think>{THOUGHT}</think>\n\nI look.\n" + written("hermes", [PARIS])
    (choice,) = ask(thinks(text))["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"], choice["finish_reason"]) == (
        THOUGHT,
        "I look.",
        "tool_calls",
    )
    streamed, reason = joined(ask(thinks(text), stream=True))
    assert without_ids(streamed) == without_ids(message)
    assert reason == "tool_calls"


def test_calls_of_harmony() -> None:
    text = (
        f"<|channel|>analysis<|message|>{THOUGHT}{ENDS}<|channel|>commentary<|message|>I look.{ENDS}"
        f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{PARIS[1]}"
    )
    for end in ("", "<|call|>", "<|call|>more"):  # a model whose files name <|call|> as its end gives none
        (choice,) = ask(thinks(text + end, "openai_gptoss"))["choices"]
        message = choice["message"]
        assert (message["reasoning_content"], message["content"]) == (THOUGHT, "I look.")
        assert [call["function"] for call in message["tool_calls"]] == [{"name": PARIS[0], "arguments": PARIS[1]}]
        assert choice["finish_reason"] == "tool_calls"
        streamed, reason = joined(ask(thinks(text + end, "openai_gptoss"), stream=True))
        assert (without_ids(streamed), reason) == (without_ids(message), "tool_calls")


def test_tokens_of_reasoning_are_counted() -> None:
    engine = thinks("<think>ab</think>cd")
    found = answer(engine, n=2)
    assert found["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2 * 4}
    assert found["usage"]["completion_tokens"] == 2 * 7
    chunks = answer(engine, stream=True, stream_options={"include_usage": True})
    assert chunks[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}
    assert answer(thinks("cd"))["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
    assert "completion_tokens_details" not in answer(tool_engine("hermes", "cd"))["usage"]
    found = answer(thinks(f"<|channel|>analysis<|message|>ab{ENDS}{FINAL}c", "openai_gptoss"))
    assert found["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}


def test_each_choice_thinks_for_itself_and_log_probabilities_are_of_all_tokens() -> None:
    found = answer(thinks("<think>ab</think>cd"), n=2, logprobs=True)
    for choice in found["choices"]:
        assert choice["message"]["reasoning_content"] == "ab"
        assert [entry["token"] for entry in choice["logprobs"]["content"]] == [
            *("<think>", "a", "b", "</think>", "c", "d", "</s>")
        ]
    streamed = answer(thinks("<think>ab</think>cd"), stream=True, logprobs=True)
    entries = [one for c in streamed for one in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert entries == found["choices"][0]["logprobs"]["content"]


def test_flags_name_the_parser_or_none() -> None:
    text = f"<think>{THOUGHT}</think>Hello"
    body = {"model": MODEL, "messages": [HI]}
    with client_of(thinks(text), ServerConfig(answers=Answers(reasoning_parser="none"))) as client:
        message = client.post(PATH, json=body).json()["choices"][0]["message"]
        assert client.get("/capabilities").json()["reasoning_parser"] is None
    assert "reasoning_content" not in message
    assert message["content"] == f"{THOUGHT}Hello", "special tokens are no text"
    plain = tool_engine("hermes", f"{THOUGHT}</think>Hello")
    with client_of(
        plain, ServerConfig(answers=Answers(reasoning_parser="deepseek_r1", tool_call_parser="none"))
    ) as client:
        message = client.post(PATH, json=body).json()["choices"][0]["message"]
        found = client.get("/capabilities").json()
        refused = client.post(PATH, json={**body, "tools": [{"type": "function", "function": {"name": "f"}}]})
    assert (message["reasoning_content"], message["content"]) == (THOUGHT, "Hello")
    assert (found["reasoning_parser"], found["tool_call_parser"]) == ("deepseek_r1", None)
    assert refused.status_code == 400


def test_harmony_is_read_only_by_its_tokens() -> None:
    """A template of it for a model without them."""
    engine = tool_engine("hermes", "Hello", template=BY_REASONING["openai_gptoss"])
    with client_of(FakeEngine(tokenizer=TOKENIZER, reply=engine.reply, model=engine.model)) as client:
        found = client.post(PATH, json={"model": MODEL, "messages": [HI]}).json()
    assert found["choices"][0]["message"]["content"] == "Hello"


@settings(max_examples=15, deadline=None)
@given(
    parser=st.sampled_from(sorted(BY_REASONING)),
    parts=st.lists(
        st.sampled_from(
            [
                *("<think>", "</think>", "Hm", "\n", " ", "<", "é", "a</"),
                *("<|channel>", "<channel|>", "thought\n"),
                *("<|channel|>", "analysis", "final", "<|message|>", "<|end|>", "<|start|>", " to=functions.f "),
            ]
        ),
        max_size=12,
    ),
    most=st.sampled_from([10_000, 9]),
    fields=st.sampled_from([{}, OPEN, CLOSED, {"include_reasoning": False}]),
)
def test_deltas_join_to_the_whole_message(parser: str, parts: list[str], most: int, fields: dict[str, Any]) -> None:
    message, _ = both(thinks("".join(parts), parser), max_tokens=most, **fields)
    json.dumps(message, ensure_ascii=False).encode()  # nothing that stands for a special token is left
