"""Messages as callers' software sends them back: what the model is shown of them, and what is dropped."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest

from jaxgen.core.model_info import ChatFormat, ModelInfo
from jaxgen.server.app import create_app
from jaxgen.server.schema import base
from tests.server.tool_calls.test_parser import written
from tests.support.fakes import MODEL, FakeEngine
from tests.support.live_server import serve
from tests.support.server_app import client_of, error_of, fake_engine
from tests.support.tool_engines import prompt_of, tool_engine
from tests.support.tool_requests import HI, PARIS, PATH, ask

SHOWN = (
    "{% for m in messages %}<{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}"
    "{% if m.tool_call_id %} to {{ m.tool_call_id }}{% endif %}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}]"
    "{% endfor %}{% endfor %}"
)
ITEMS = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name }}[{% for name, value in c.function.arguments.items() %}{{ name }}={{ value }}{% endfor %}]"
    "{% endfor %}{% endfor %}."
)
TEXT = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
    "{{ '[' + c.function.arguments + ']' }}{% endfor %}{% endfor %}."
)


def engine_with(template: str) -> FakeEngine:
    return fake_engine(model=ModelInfo(MODEL, 20_000, 400, chat=ChatFormat(template, {})))


def shown(*messages: dict[str, Any], template: str = SHOWN) -> str:
    """What the template made of the messages."""
    engine = engine_with(template)
    with client_of(engine) as client:
        answer = client.post(PATH, json={"model": MODEL, "messages": list(messages), "max_tokens": 1})
    assert answer.status_code == 200, answer.text
    return prompt_of(engine)


def refused(*messages: dict[str, Any]) -> dict[str, Any]:
    with client_of(engine_with(SHOWN)) as client:
        answer = client.post(PATH, json={"model": MODEL, "messages": list(messages)})
    assert answer.status_code == 400, answer.text
    return error_of(answer.json())


def said(content: Any = None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def call(name: str = "f", arguments: Any = "{}", **fields: Any) -> dict[str, Any]:
    return {"id": "a", "type": "function", "function": {"name": name, "arguments": arguments}, **fields}


class City(pydantic.BaseModel):
    """Of which the weather is asked."""

    city: str


@pytest.fixture
def parsing() -> Iterator[tuple[openai.OpenAI, FakeEngine]]:
    engine = tool_engine("hermes", written("hermes", [PARIS]))
    with (
        serve(create_app(engine)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client, engine


def test_a_conversation_goes_on_with_what_openais_helpers_return(parsing: tuple[openai.OpenAI, FakeEngine]) -> None:
    """They add ``parsed`` to messages, and ``parsed_arguments`` to functions."""
    client, engine = parsing
    tools = [openai.pydantic_function_tool(City, name="get_weather")]
    asked: Any = {"model": MODEL, "tools": tools}
    with client.chat.completions.stream(messages=[{"role": "user", "content": "Hi"}], **asked) as stream:
        streamed = stream.get_final_completion().choices[0].message
    whole = client.chat.completions.parse(messages=[{"role": "user", "content": "Hi"}], **asked).choices[0].message
    for message in (whole, streamed):
        assert message.tool_calls
        assert message.tool_calls[0].function.parsed_arguments == City(city="Paris 😀}")
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "It rains."}
        history: Any = [{"role": "user", "content": "Hi"}, message, result]
        client.chat.completions.parse(messages=history, **asked)
        assert '{"name": "get_weather", "arguments": {"city": "Paris 😀}"}}' in prompt_of(engine)
        dumped: Any = [{"role": "user", "content": "Hi"}, message.model_dump(mode="json"), result]
        client.chat.completions.create(messages=dumped, **asked)
        assert '{"name": "get_weather", "arguments": {"city": "Paris 😀}"}}' in prompt_of(engine)


def test_keys_of_others_are_dropped_and_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_dropped", set())
    caplog.set_level(logging.DEBUG, "jaxgen.server.schema.base")
    mark = {"cache_control": {"type": "ephemeral"}}
    cited = {"type": "url_citation", "url_citation": {"url": "x", "title": "x", "start_index": 0, "end_index": 1}}
    extras: dict[str, Any] = {
        "provider_specific_fields": None,
        "reasoning_content": "Hm.",
        "phase": "final",
        "parsed": {},
    }
    made = call(index=0, **extras)
    made["function"] |= {"parsed_arguments": {}, **mark}
    history = [
        {"role": "user", "content": [{"type": "text", "text": "Hi", **mark}], **mark},
        said("Yes", tool_calls=[made], annotations=[cited], id="msg_1", **extras),
        {"role": "tool", "tool_call_id": "a", "content": "3", **mark},
        {"role": "user", "content": "And?", "tool_call_id": "", "tool_calls": None, "name": ""},
    ]
    assert shown(*history) == "<user>Hi<assistant>Yes[a f {}]<tool f to a>3<user>And?"
    tool = {"type": "function", "function": {"name": "f", "returns": "x", **mark}, **mark}
    for _ in range(2):
        ask(tool_engine("hermes", ""), messages=history, tools=[tool])
    for name, kind in [("phase", "Message"), ("phase", "ToolCall"), ("returns", "FunctionDefinition")]:
        assert [r.getMessage() for r in caplog.records].count(f"dropped '{name}' of a {kind}") == 1
    assert "Hm." not in caplog.text


THOUGHTS = (
    "{% for m in messages %}[{{ m.reasoning_content }}|{{ m.thinking }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (said("Yes", reasoning_content="Hm"), "[Hm|]Yes"),
        (said(reasoning="Hm", tool_calls=[call()]), '[Hm|Hm]{"name": "f", "arguments": {}}'),
        (said("Yes", reasoning_content=None, reasoning=""), "[|]Yes"),
        (said("Yes", reasoning={"effort": "low"}, reasoning_content=[{"type": "text"}]), "[|]Yes"),
        ({"role": "user", "content": "Hi", "reasoning_content": "Hm"}, "[|]Hi"),
    ],
)
def test_a_template_gets_what_was_thought(message: dict[str, Any], text: str) -> None:
    """Under ``thinking`` only without content: templates with that name refuse both."""
    assert shown(message, template=THOUGHTS) == text


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (said(), ""),
        (said(tool_calls=[]), ""),
        (said(tool_calls=None, function_call=None, refusal=None, audio=None, name=None), ""),
        (said(""), ""),
        (said([]), ""),
        (said(refusal="I cannot."), "I cannot."),
        (said("", refusal="I cannot."), "I cannot."),
        (said("Yes.", refusal="I cannot."), "Yes."),
        (said([{"type": "refusal", "refusal": "I cannot."}]), "I cannot."),
        (said([{"type": "output_text", "text": "a", "annotations": []}, {"text": "b"}]), "ab"),
        (said([{"type": "thinking", "thinking": "Hm.", "signature": "x"}, {"type": "text", "text": "a"}]), "a"),
        (said(audio={"id": "audio_1", "data": "UklG", "expires_at": 1, "transcript": "Heard."}), "Heard."),
        (said("Read.", audio={"id": "audio_1"}), "Read."),
    ],
)
def test_what_was_said_is_shown(message: dict[str, Any], text: str) -> None:
    assert shown(HI, message) == f"<user>Hi<assistant>{text}"


def test_parts_of_a_user_may_be_named_as_in_responses() -> None:
    assert shown({"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}) == "<user>Hi"


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", ["text"], None, 5])
def test_parts_without_text_are_refused_by_their_type(kind: Any) -> None:
    error = refused({"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": kind, "image_url": {}}]})
    assert error["param"] == "messages.0.content.1.type"
    assert repr(str(kind)) in error["message"]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": None, "refusal": "no"}, "messages.1.content"),
        ({"role": "system"}, "messages.1.content"),
        ({"role": "user", "content": "x", "function_call": {"name": "f"}}, "messages.1.function_call"),
        (said(audio={"id": "audio_1"}), "messages.1.audio"),
        (said([{"type": "refusal", "text": "x"}]), "messages.1.content.0.refusal"),
        (said(tool_calls=[call(arguments=3)]), "messages.1.tool_calls.0.function.arguments"),
        (said(tool_calls=[{"id": "a", "type": "custom", "custom": {"name": "f"}}]), "messages.1.tool_calls.0.type"),
    ],
)
def test_what_says_nothing_is_refused(message: dict[str, Any], param: str) -> None:
    assert refused(HI, message)["param"] == param


CUT = '{"city": "Par'


@pytest.mark.parametrize(
    ("arguments", "as_object", "as_items", "as_text"),
    [
        ('{"a": 1}', '{"a": 1}', "[a=1]", '{"a": 1}'),
        ({"a": "é"}, '{"a": "é"}', "[a=é]", '{"a": "é"}'),
        (None, "{}", "[]", "{}"),
        ("", "{}", "[]", "{}"),
        (" null ", "{}", "[]", "{}"),
        (CUT, json.dumps(CUT), "[]", CUT),
        ("3", '"3"', "[]", "3"),
        ('{"a": NaN}', json.dumps('{"a": NaN}'), "[]", '{"a": NaN}'),
    ],
)
def test_arguments_are_what_the_template_takes(arguments: Any, as_object: str, as_items: str, as_text: str) -> None:
    history = [HI, said(tool_calls=[call(arguments=arguments)])]
    assert shown(*history) == f"<user>Hi<assistant>[a f {as_object}]"
    assert shown(*history, template=ITEMS) == f"Hif{as_items}."
    assert shown(*history, template=TEXT) == f"Hif[{as_text}]."


def result(call_id: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "content": "3", **({} if call_id is None else {"tool_call_id": call_id}), **fields}


TWO = said(tool_calls=[call("f", id="a"), call("g", id="b")])


@pytest.mark.parametrize(
    ("history", "results"),
    [
        ([TWO, result("b"), result("a")], "<tool g to b>3<tool f to a>3"),
        # Ids that a proxy has rewritten, or left out.
        ([TWO, result("x"), result("y")], "<tool f to a>3<tool g to b>3"),
        ([TWO, result("b"), result("x")], "<tool g to b>3<tool f to a>3"),
        ([TWO, result(), result(None, tool_call_id=None)], "<tool f to a>3<tool g to b>3"),
        ([TWO, result("a"), result("a")], "<tool f to a>3<tool f to a>3"),
        # The call was cut off the beginning of the conversation.
        ([result("x")], "<tool to x>3"),
        ([result("x", name="h"), result(content=None)], "<tool h to x>3<tool>"),
        ([TWO, result("b", name="h")], "<tool h to b>3"),
    ],
)
def test_a_result_finds_its_call(history: list[dict[str, Any]], results: str) -> None:
    assert shown(HI, *history).endswith(f"{'>' if TWO not in history else ']'}{results}".removeprefix(">"))


def test_results_are_of_the_last_calls() -> None:
    """Some servers count the calls of each message from one."""
    again = [said(tool_calls=[call("f")]), said(tool_calls=[call("g")]), result("a")]
    assert shown(HI, *again).endswith("<tool g to a>3")


def test_calls_without_ids_are_given_some() -> None:
    calls = [call(name, id=None) for name in "fg"]
    del calls[1]["type"]
    assert shown(HI, said(tool_calls=calls), result(), said(tool_calls=[call("h", id="")])) == (
        "<user>Hi<assistant>[call00000 f {}][call00001 g {}]<tool f to call00000>3<assistant>[call00002 h {}]"
    )


def test_functions_of_old_are_tools() -> None:
    history = [
        said(function_call={"name": "f", "arguments": '{"a": 1}'}),
        {"role": "function", "name": "f", "content": "3"},
        {"role": "function", "name": "g", "content": None},
    ]
    assert shown(HI, *history) == '<user>Hi<assistant>[call00000 f {"a": 1}]<tool f to call00000>3<tool g>'
