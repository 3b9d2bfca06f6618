"""/v1/responses: the objects and events of OpenAI's types, and what is refused."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from jaxgen.core.model_info import ModelInfo
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.server.app import create_app
from jaxgen.server.requests.structured import json_grammar
from tests.server.tool_calls.test_endpoints import KINDS
from tests.server.tool_calls.test_parser import TEXTS, written
from tests.support.fakes import MODEL, FakeEngine
from tests.support.known_templates import KNOWN
from tests.support.live_server import serve
from tests.support.server_app import client_of, error_of, fake_engine
from tests.support.tool_engines import prompt_of, tool_engine

PATH = "/v1/responses"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
F = {"type": "function", "name": "f", "parameters": None, "strict": None}
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
ALLOWED: dict[str, Any] = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}
PARIS = ("get_weather", '{"city": "Paris 😀}"}')
CALL = {"type": "function_call", "call_id": "abcdefghi", "name": PARIS[0], "arguments": PARIS[1]}


def ask(engine: FakeEngine, status: int = 200, **fields: Any) -> Any:
    with client_of(engine) as client:
        answer = client.post(PATH, json={"model": MODEL, "input": "Hi", **fields})
    assert answer.status_code == status, answer.text
    if not fields.get("stream") or status != 200:
        return answer.json()
    return events_of(answer.text)


def events_of(text: str) -> list[dict[str, Any]]:
    """Each checked against OpenAI's type, its name and its number. A plain stream has no other lines."""
    found: list[dict[str, Any]] = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        head, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert head == f"event: {event['type']}"
        assert event["sequence_number"] == len(found)
        EVENT.validate_python(event)
        found.append(event)
    return found


def plain(response: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from one answer to the next."""
    output = [
        {key: value for key, value in item.items() if key not in ("id", "call_id")} for item in response["output"]
    ]
    return {**response, "id": "", "created_at": 0, "completed_at": 0, "output": output}


def built(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output items that the deltas build up, each checked against the events of its end."""
    items: list[dict[str, Any]] = []
    for event in events:
        item = items[-1] if items else {}
        if event["type"] == "response.output_item.added":
            assert event["output_index"] == len(items)
            assert event["item"]["status"] == "in_progress"
            items.append(event["item"])
        elif "output_index" in event:
            assert event["output_index"] == len(items) - 1
            assert event.get("item_id", item["id"]) == item["id"]
        _apply(event, item)
    return items


def _apply(event: dict[str, Any], item: dict[str, Any]) -> None:
    match event["type"]:
        case "response.content_part.added":
            item["content"].append(event["part"])
        case "response.output_text.delta":
            item["content"][event["content_index"]]["text"] += event["delta"]
            item["content"][event["content_index"]]["logprobs"] += event["logprobs"]
        case "response.function_call_arguments.delta":
            item["arguments"] += event["delta"]
        case "response.reasoning_text.delta":
            item["content"][event["content_index"]]["text"] += event["delta"]
        case "response.output_text.done" | "response.reasoning_text.done":
            assert event["text"] == item["content"][0]["text"]
        case "response.content_part.done":
            assert event["part"] == item["content"][0]
        case "response.function_call_arguments.done":
            assert event["arguments"] == item["arguments"]
        case "response.output_item.done":
            item["status"] = event["item"]["status"]
            assert event["item"] == item


@settings(max_examples=15, deadline=None)
@example(kind="hermes", text=None, most=None)
@given(kind=st.sampled_from(KINDS), text=TEXTS | st.none(), most=st.sampled_from([None, 25]))
def test_events_build_up_the_whole_response(kind: str, text: str | None, most: int | None) -> None:
    """``text`` None: content, and then calls."""
    fields: dict[str, Any] = {"tools": [F, WEATHER], "max_output_tokens": most, "metadata": {"a": "b"}}
    text = "Well. " + written(kind, [PARIS, ("f", "{}")]) if text is None else text
    whole = ask(tool_engine(kind, text), **fields)
    Response.model_validate(whole)
    events = ask(tool_engine(kind, text), stream=True, **fields)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[0]["response"]["output"] == []
    assert events[-1]["type"] == f"response.{whole['status']}"
    assert plain(events[-1]["response"]) == plain(whole)
    assert built(events) == events[-1]["response"]["output"]
    assert all(item["status"] != "in_progress" for item in whole["output"])


def test_a_response_says_what_was_asked() -> None:
    engine = tool_engine("hermes", "Hello 😀")
    fields: dict[str, Any] = {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "temperature": 0.5,
        "top_p": 0.25,
        "user": "u",
        "store": False,
        "truncation": "disabled",
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": None},
        "include": ["reasoning.encrypted_content"],
        "max_tool_calls": 3,
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "service_tier": "auto",
        "max_output_tokens": 50,
    }
    response = ask(engine, **fields)
    (item,) = response["output"]
    assert item["content"] == [{"type": "output_text", "text": "Hello 😀", "annotations": [], "logprobs": []}]
    assert (response["object"], response["status"], response["store"]) == ("response", "completed", False)
    for name in ("instructions", "metadata", "temperature", "top_p", "user", "max_output_tokens", "truncation"):
        assert response[name] == fields[name], name
    params: SamplingParams = engine.requests[0].params
    assert (params.temperature, params.top_p, params.max_tokens) == (0.5, 0.25, 50)
    assert prompt_of(engine).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi")
    usage = response["usage"]
    assert usage["output_tokens"] == len("Hello 😀".encode()) + 1
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_a_format_of_the_text_reaches_the_engine() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    engine = tool_engine("hermes", "{}")
    named: dict[str, Any] = {"type": "json_schema", "name": "p", "schema": schema, "strict": True}
    cases: list[tuple[dict[str, Any], Any]] = [(named, schema), ({"type": "json_object"}, {"type": "object"})]
    for asked, meant in cases:
        response = ask(engine, text={"format": asked})
        grammar = engine.requests[-1].params.grammar
        assert grammar is not None
        assert (grammar.text, grammar.source) == (json_grammar(meant), "text.format")
        assert response["text"] == {"format": asked}
        Response.model_validate(response)
    ask(engine, text={"format": {"type": "text"}})
    assert engine.requests[-1].params.grammar is None


def test_an_answer_cut_off_is_incomplete() -> None:
    response = ask(tool_engine("hermes", "Hello"), max_output_tokens=2)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][0]["status"] == "incomplete"
    assert response["output"][0]["content"][0]["text"] == "He"


@pytest.mark.parametrize(("arguments", "status"), [('{"city": "Par', "incomplete"), ('{"city": "Paris"}', "completed")])
def test_a_call_that_the_model_left_unfinished_is_incomplete(arguments: str, status: str) -> None:
    text = '<tool_call>\n{"name": "get_weather", "arguments": ' + arguments
    response = ask(tool_engine("hermes", text), tools=[{"type": "function", "name": "get_weather"}])
    (item,) = response["output"]
    assert (item["type"], item["arguments"], item["status"]) == ("function_call", arguments, status)


@pytest.mark.parametrize("name", ["qwen-2.5", "qwen-3.5", "gemma-2", "gpt-oss"])
def test_a_developers_words_reach_the_model(name: str) -> None:
    """As items of Codex do, also with instructions, which are a system message."""
    engine = fake_engine(model=ModelInfo(MODEL, 20_000, 400, chat=KNOWN[name]))
    ask(engine, input=[{"role": "developer", "content": "Rhyme."}, {"role": "user", "content": "Hi"}])
    assert "Rhyme." in prompt_of(engine)
    ask(
        engine,
        instructions="Be brief.",
        input=[{"role": "developer", "content": "Rhyme."}, {"role": "user", "content": "Hi"}],
    )
    assert prompt_of(engine).index("Be brief.") < prompt_of(engine).index("Rhyme.") < prompt_of(engine).index("Hi")


def test_items_become_the_messages_of_a_conversation() -> None:
    engine = tool_engine("hermes", "")
    said = {"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Rain"}, {"type": "input_text", "text": "?"}]},
        {"type": "message", "role": "assistant", "content": [said], "id": "msg_1", "status": "completed"},
        {**CALL, "id": "fc_1", "status": "completed"},
        {**CALL, "call_id": "b", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "abcdefghi", "output": "It rains."},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "ok"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    ]
    ask(engine, input=items)
    called = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call><|im_end|>\n'
    assert prompt_of(engine) == (
        "<|im_start|>user\nRain?<|im_end|>\n"
        '<|im_start|>assistant\nI look.\n<tool_call>\n{"name": "get_weather", "arguments": '
        f"{PARIS[1]}}}\n</tool_call>\n{called}"
        "<|im_start|>user\n<tool_response>It rains.</tool_response><|im_end|>\n"
        "<|im_start|>user\n<tool_response>ok</tool_response><|im_end|>\n"
        f"<|im_start|>assistant\n\n{called}"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("choice", "demanded"),
    [
        (None, False),
        ("auto", False),
        ("none", False),
        ("required", True),
        ({"type": "function", "name": "f"}, True),
        (ALLOWED, True),
        (ALLOWED | {"mode": "auto"}, False),
    ],
)
def test_tool_choice_reaches_the_engine(choice: Any, demanded: bool) -> None:
    engine = tool_engine("hermes", "Hi")
    response = ask(engine, tools=[F, WEATHER], tool_choice=choice)
    assert (engine.requests[0].params.grammar is not None) == demanded
    assert response["tool_choice"] == (choice or "auto")
    left_out = choice == "none" or (isinstance(choice, dict) and choice["type"] == "allowed_tools")
    assert ("get_weather" in prompt_of(engine)) == (not left_out)
    Response.model_validate(response)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": ["x"]}, "input.0"),
        ({"input": [{"type": "reasoning", "id": "r", "summary": []}]}, "input"),
        ({"input": [{"type": "web_search_call", "id": "w"}]}, "input.0.type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0.id"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0.type"),
        ({"input": [{**CALL, "arguments": {}}]}, "input.0.arguments"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": ""}]}, "input.0.call_id"),
        ({"input": "x" * 30_000}, "input"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"include": ["message.everything"]}, "include.0"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "p"}}}, "text.format"),
        ({"text": {"format": {"type": "json_object", "schema": {}}}}, "text.format"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"min_p": 2}, "min_p"),
        ({"stop": "x" * 257}, "stop"),
        ({"truncation": "auto"}, "truncation"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 30_000}, "max_output_tokens"),
        ({"tools": [{"name": "f"}]}, "tools.0.type"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [F, F]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"tools": [F], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"tools": [F], "tool_choice": ALLOWED | {"tools": [WEATHER]}}, "tool_choice.tools"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"return_latency": "yes"}, "return_latency"),
        ({"instructions": 5}, "instructions"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"messages": []}, "messages"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    engine = tool_engine("hermes", "Hello")
    error = error_of(ask(engine, 400, **fields))
    assert error["param"] == param
    assert "messages" not in error["message"] or param == "messages"
    assert "max_tokens" not in error["message"]
    assert engine.requests == []


@pytest.mark.parametrize("kind", ["input_image", "input_file"])
def test_a_part_that_is_no_text_is_refused_by_its_type(kind: str) -> None:
    given = [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}, {"type": kind}]}]
    error = error_of(ask(tool_engine("hermes", "Hello"), 400, input=given))
    says = f"input.0.content.1.type: parts of the type '{kind}' are not supported: send text."
    assert (error["message"], error["param"]) == (says, "input.0.content.1.type")


def test_a_model_without_a_template_says_so() -> None:
    assert "--chat-template" in error_of(ask(fake_engine(), 400))["message"]


def test_a_failure_in_mid_stream_is_an_event() -> None:
    async def fail_late(request: Request, index: int) -> None:
        await asyncio.sleep(0.01)
        if index == 3:
            raise RuntimeError("secret")

    events = ask(tool_engine("hermes", "Hello", pace=fail_late), stream=True)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["status"] == "failed"
    assert "secret" not in json.dumps(events[-1])


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    text = "I look." + written("hermes", [PARIS])
    with (
        serve(create_app(tool_engine("hermes", text))) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made,
    ):
        yield made


def test_the_openai_client_gets_a_response_and_sends_it_back(client: openai.OpenAI) -> None:
    tools: Any = [F, WEATHER]
    response = client.responses.create(model=MODEL, input="Hi", tools=tools)
    assert (response.status, response.output_text) == ("completed", "I look.")
    call = response.output[1]
    assert call.type == "function_call"
    assert (call.name, call.arguments) == PARIS
    items: Any = [{"role": "user", "content": "Hi"}, *response.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "Rain"})
    assert client.responses.create(model=MODEL, input=items, tools=tools).status == "completed"


def test_the_openai_client_streams(client: openai.OpenAI) -> None:
    tools: Any = [F, WEATHER]
    with client.responses.stream(model=MODEL, input="Hi", tools=tools) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert {"response.output_text.delta", "response.function_call_arguments.delta", "response.completed"} <= kinds
    assert final.output_text == "I look."
    assert [item.arguments for item in final.output if item.type == "function_call"] == [PARIS[1]]
