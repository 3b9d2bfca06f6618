"""/v1/messages: what a request becomes, what an answer says, and what is refused."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from jaxgen.core.service_class import ServiceClass
from jaxgen.server.config import ServerConfig
from jaxgen.server.requests import tools
from tests.server.api.test_reasoning import thinks
from tests.server.tool_calls.test_parser import written
from tests.support import tool_requests as chat
from tests.support.fakes import MODEL, FakeEngine
from tests.support.message_requests import HI, PATH, WEATHER, F, anthropic_types, ask, asked
from tests.support.server_app import client_of
from tests.support.tool_engines import prompt_of, tool_engine

TOOLS: dict[str, Any] = {"tools": [F, WEATHER]}
CHAT_TOOLS: dict[str, Any] = {
    "tools": [{**chat.F, "function": {**chat.F["function"], "parameters": F["input_schema"]}}, chat.WEATHER]
}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": "é"}}
CHAT_CALL = {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": '{"a": "é"}'}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
THINK = "<think>\nHm.\n</think>\n\n"


@pytest.fixture(autouse=True)
def nothing_said() -> Iterator[None]:
    tools._said.cache_clear()
    yield
    tools._said.cache_clear()


def result(content: Any = "1", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **fields}


def turns(*blocks: Any) -> list[dict[str, Any]]:
    return [HI, {"role": "assistant", "content": [CALL]}, {"role": "user", "content": list(blocks)}]


def chat_turns(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return [HI, {"role": "assistant", "content": "", "tool_calls": [CHAT_CALL]}, *messages]


def tool(text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "toolu_1", "content": text}


def text(said: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **fields}


SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a text": ({}, {}),
    "a system prompt": ({"system": "Be brief."}, {"messages": [{"role": "system", "content": "Be brief."}, HI]}),
    "blocks": (
        {
            "system": [text("x-anthropic-billing-header: cc_version=1.2.abc;"), text("Be"), text("brief.")],
            "messages": [{"role": "user", "content": [text("H"), text("i", cache_control={"type": "ephemeral"})]}],
        },
        {"messages": [{"role": "system", "content": "Be\nbrief."}, {"role": "user", "content": "H\ni"}]},
    ),
    "a system message later": (
        {"messages": [HI, {"role": "system", "content": [text("Now"), {"type": "tool_removal", "tool": {}}]}, HI]},
        {"messages": [HI, {"role": "system", "content": "Now"}, HI]},
    ),
    "tools": (TOOLS, CHAT_TOOLS),
    "another's tools": ({"tools": [F, {"type": "bash_20250124", "name": "bash"}]}, {"tools": CHAT_TOOLS["tools"][:1]}),
    "any tool": ({**TOOLS, "tool_choice": {"type": "any"}}, {**CHAT_TOOLS, "tool_choice": "required"}),
    "one tool": (
        {**TOOLS, "tool_choice": {"type": "tool", "name": "f"}},
        {**CHAT_TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
    ),
    "no tool": ({**TOOLS, "tool_choice": {"type": "none"}}, {**CHAT_TOOLS, "tool_choice": "none"}),
    "one call": (
        {**TOOLS, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        {**CHAT_TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
    ),
    "a call and its result": ({"messages": turns(result())}, {"messages": chat_turns(tool("1"))}),
    "a result in parts, then a text": (
        {"messages": turns(text("So?"), result([text("1"), {"type": "tool_reference", "tool_name": "g"}]))},
        {"messages": chat_turns(tool("1\ng"), {"role": "user", "content": "So?"})},
    ),
    "an error": (
        {"messages": turns(result([text("no such file")], is_error=True))},
        {"messages": chat_turns(tool("Error: no such file"))},
    ),
    "an empty result": ({"messages": turns(result(None))}, {"messages": chat_turns(tool(""))}),
    "a past thought": (
        {
            "messages": [
                HI,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm", "signature": "any"},
                        {"type": "redacted_thinking", "data": "any"},
                        text("We"),
                        text("ll."),
                        CALL,
                    ],
                },
                {"role": "user", "content": [result()]},
            ]
        },
        {
            "messages": [
                HI,
                {"role": "assistant", "content": "Well.", "reasoning_content": "Hm", "tool_calls": [CHAT_CALL]},
                tool("1"),
            ]
        },
    ),
    "an answer that goes on": (
        {"messages": [HI, {"role": "assistant", "content": "It is ("}]},
        {
            "messages": [HI, {"role": "assistant", "content": "It is ("}],
            "continue_final_message": True,
            "add_generation_prompt": False,
        },
    ),
    "sampling": (
        {"temperature": 0.5, "top_k": 5, "top_p": 0.5, "stop_sequences": ["END", "x"], "seed": 7, "min_tokens": 2},
        {"temperature": 0.5, "top_k": 5, "top_p": 0.5, "stop": ["END", "x"], "seed": 7, "min_tokens": 2},
    ),
    "a format": (
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    ),
    "fields that ask for nothing": (
        {
            "metadata": {"user_id": "me"},
            "cache_control": {"type": "ephemeral"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "high", "task_budget": {}},
            "mcp_servers": [],
            "speed": "standard",
            "service_tier": "standard_only",
        },
        {},
    ),
}


@pytest.mark.parametrize("case", SAME)
def test_a_request_is_that_of_a_chat(case: str) -> None:
    """The prompt, the parameters, and what the grammar is, but for the name of the field that it comes from."""
    fields, same = SAME[case]
    engines = [thinks("Hello"), thinks("Hello")]
    ask(engines[0], **fields)
    chat.ask(engines[1], **{"tools": None, "max_completion_tokens": 10_000, **same})
    (mine,), (other,) = (engine.requests for engine in engines)
    assert mine.prompt == other.prompt
    told = replace(mine.params, seed=other.params.seed) if "seed" not in fields else mine.params
    if "output_config" in fields and told.grammar is not None:
        assert told.grammar.source == "output_config.format", "which errors of the engine name"
        told = replace(told, grammar=replace(told.grammar, source="response_format"))
    assert told == other.params


@pytest.mark.parametrize("case", SAME)
def test_the_count_is_what_the_request_uses(case: str) -> None:
    fields, _ = SAME[case]
    engine = thinks("Hello", cached=5)
    usage = ask(engine, **fields)["usage"]
    known = ("system", "messages", "tools", "tool_choice", "output_config", "cache_control", "context_management")
    counted = ask(
        engine,
        path=f"{PATH}/count_tokens",
        max_tokens=None,
        **{name: value for name, value in fields.items() if name in known},
    )
    anthropic_types().MessageTokensCount.model_validate(counted)
    assert usage["cache_read_input_tokens"] == 5
    assert counted == {"input_tokens": usage["input_tokens"] + 5}
    assert counted["input_tokens"] == len(engine.requests[0].prompt)
    assert len(engine.requests) == 1, "to count computes nothing"


def test_what_a_message_says() -> None:
    engine = thinks(f"{THINK}Well. {written('hermes', [('get_weather', '{"city": "Bern"}'), ('f', '{}')])}", cached=3)
    message = ask(engine, **TOOLS)
    anthropic_types().Message.model_validate(message)
    assert message["id"].startswith("msg_")
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", MODEL)
    thought, said, first, second = message["content"]
    assert (thought["type"], thought["thinking"]) == ("thinking", "Hm.")
    assert thought["signature"], "else clients do not send it back"
    assert said == {"type": "text", "text": "Well."}
    assert (first["type"], first["name"], first["input"]) == ("tool_use", "get_weather", {"city": "Bern"})
    assert (second["name"], second["input"]) == ("f", {})
    assert first["id"] != second["id"]
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)
    usage, (request,) = message["usage"], engine.requests
    assert usage["input_tokens"] == len(request.prompt) - 3
    assert (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (3, 0)
    assert 0 < usage["output_tokens_details"]["thinking_tokens"] < usage["output_tokens"]
    assert usage["service_tier"] == "standard"


def test_the_message_goes_back() -> None:
    """What was thought is what the template is told, and calls have the ids of their results."""
    engine = thinks(f"{THINK}Well. {written('hermes', [('f', '{}')])}")
    message = ask(engine, **TOOLS)
    *_, call = message["content"]
    results = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "It is 7."}]}
    ask(engine, **TOOLS, messages=[HI, {"role": "assistant", "content": message["content"]}, results])
    assert prompt_of(engine).count("It is 7.") == 1


@pytest.mark.parametrize(
    ("said", "fields", "reason", "sequence"),
    [
        ("Hello", {}, "end_turn", None),
        ("Hello", {"max_tokens": 3}, "max_tokens", None),
        ("Hello", {"max_tokens": 6}, "end_turn", None),
        ("one END two", {"stop_sequences": ["zz", "END"]}, "stop_sequence", "END"),
        ("one ENDE two", {"stop_sequences": ["NDE", "ENDE"]}, "stop_sequence", "ENDE"),
        ("a" * 30_000, {"max_tokens": 100_000}, "model_context_window_exceeded", None),
    ],
)
def test_why_it_stopped(said: str, fields: dict[str, Any], reason: str, sequence: str | None) -> None:
    message = ask(tool_engine("hermes", said), **fields)
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)
    if sequence is not None:
        assert message["content"] == [text(said.partition(sequence)[0])]


def test_an_answer_that_says_nothing_has_no_blocks() -> None:
    message = ask(tool_engine("hermes", ""))
    assert (message["content"], message["stop_reason"]) == ([], "end_turn")


def test_a_call_that_was_cut_off_has_what_came_of_its_input() -> None:
    said = written("hermes", [("get_weather", '{"city": "Bern", "days": 3}')])
    most = said.index('"days') - len("<tool_call>") + 1
    message = ask(tool_engine("hermes", said), **TOOLS, max_tokens=most)
    (call,) = message["content"]
    assert (message["stop_reason"], call["input"]) == ("max_tokens", {"city": "Bern"})


@pytest.mark.parametrize(
    ("thinking", "opened", "shown"),
    [
        (None, False, True),
        ({"type": "enabled", "budget_tokens": 1024}, True, True),
        ({"type": "adaptive", "display": "omitted"}, True, False),
        ({"type": "disabled"}, False, False),
    ],
)
def test_thinking_may_be_left_out(thinking: Any, opened: bool, shown: bool) -> None:
    said = f"{'' if opened else '<think>'}Hm.</think>Hello"
    engine = thinks(said)
    message = ask(engine, thinking=thinking)
    if thinking is not None:
        assert prompt_of(engine).rstrip().endswith("<think>" if opened else "</think>")
    kinds = [block["type"] for block in message["content"]]
    assert ("thinking" in kinds) == shown


def test_effort_goes_to_a_template_that_has_levels() -> None:
    engine = thinks("<|channel|>final<|message|>Hello", "openai_gptoss")
    ask(engine, output_config={"effort": "low"}, chat_template_kwargs={"other": 1})
    ask(engine, output_config={"effort": "high"}, chat_template_kwargs={"reasoning_effort": "low"})
    first, second = (request.prompt for request in engine.requests)
    assert first == second, "the template's own argument wins"


def test_edits_of_the_context_are_said_to_be_none() -> None:
    fields: dict[str, Any] = {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}
    assert ask(tool_engine("hermes", "Hi"), **fields)["context_management"] == {"applied_edits": []}
    *_, last, _ = ask(tool_engine("hermes", "Hi"), stream=True, **fields)
    assert last["context_management"] == {"applied_edits": []}
    assert "context_management" not in ask(tool_engine("hermes", "Hi"))


def test_latency_where_it_is_asked_for() -> None:
    whole = ask(tool_engine("hermes", "Hi"), return_latency=True)
    *_, last, _ = ask(tool_engine("hermes", "Hi"), return_latency=True, stream=True)
    assert whole["latency"].keys() == last["latency"].keys() != set()


def test_a_service_class_by_its_name() -> None:
    config = ServerConfig(service_classes=(ServiceClass(name="fast", first_token_seconds=60.0),))
    engine = tool_engine("hermes", "Hi")
    with client_of(engine, config) as client:
        usage = client.post(PATH, json=asked(service_tier="fast")).json()["usage"]
        refused = client.post(PATH, json=asked(service_tier="slow"))
    assert (usage["service_tier"], engine.requests[0].service.name) == ("fast", "fast")
    assert (refused.status_code, "fast" in refused.text) == (400, True)


IMAGE = {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an image": (
        {"messages": [{"role": "user", "content": [text("a"), IMAGE]}]},
        "messages.0.content.1.type: parts of the type",
    ),
    "an image in a result": (
        {"messages": turns(result([IMAGE]))},
        "messages.2.content.0.content.0.type: parts of the type",
    ),
    "a document": ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "'document'"),
    "no messages": ({"messages": []}, "messages must have at least one message"),
    "messages missing": ({"messages": None}, "messages must have at least one message"),
    "another role": ({"messages": [{"role": "tool", "content": "a"}]}, "messages.0.role"),
    "no limit": ({"max_tokens": None}, "max_tokens: Field required"),
    "no tokens": ({"max_tokens": 0}, "max_tokens must be 1 or more"),
    "another field": ({"frequency_penalty": 1}, "Unknown field 'frequency_penalty'"),
    "a thread": ({"thread": {"type": "create"}}, "thread: this server keeps no conversations"),
    "servers of tools": ({"mcp_servers": [{"type": "url"}]}, "mcp_servers: this server calls no tools itself"),
    "temperature": ({"temperature": 3}, "temperature"),
    "top_k": ({"top_k": -2}, "top_k"),
    "an empty stop": ({"stop_sequences": ["a", ""]}, "stop_sequences.1 must not be an empty string"),
    "many stops": ({"stop_sequences": ["a"] * 1000}, "stop_sequences has 1000 entries"),
    "more tokens than the limit": ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
    "a choice of nothing": ({**TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice.name: Field required"),
    "a choice of no tool": ({**TOOLS, "tool_choice": {"type": "tool", "name": "g"}}, "'g' is not one of the tools"),
    "a choice without tools": ({"tool_choice": {"type": "any"}}, "tools is empty"),
    "tools twice": ({"tools": [F, F]}, "'f' is there twice"),
    "a long name": ({"tools": [{**F, "name": "f" * 129}]}, "tools.0.name"),
    "a result of nothing": (
        {"messages": [{"role": "user", "content": [result()]}]},
        "messages.0.content.0.tool_use_id: no tool_use block before it has this id",
    ),
    "a call at the end": ({"messages": turns()[:2]}, "no tool_result block comes after it"),
    "a call of the user's": (
        {"messages": [{"role": "user", "content": [CALL]}]},
        "messages.0.content.0: only messages",
    ),
    "a result of the assistant's": (
        {"messages": [*turns()[:2], {"role": "assistant", "content": [result()]}]},
        "only messages of the role user have a tool_result block",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    fields, words = REFUSED[case]
    engine = tool_engine("hermes", "Hello")
    error = ask(engine, 400, **fields)
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]
    assert engine.requests == []


def test_codes_are_in_the_details() -> None:
    error = ask(tool_engine("hermes", "Hello"), 400, thread={"type": "create"})
    assert error["details"] == {"error_code": "thread_unsupported_request"}, "by which SDKs send all messages instead"
    assert ask(tool_engine("hermes", "Hello"), 404, model="nobody")["details"] == {"error_code": "model_not_found"}


def test_a_prompt_that_is_too_long_is_said_in_the_words_that_agents_look_for() -> None:
    for content in ("a" * 25_000, "a b" * 1_000_000):
        error = ask(tool_engine("hermes", ""), 400, messages=[{"role": "user", "content": content}])
        assert error["message"].startswith("prompt is too long: ")
        assert error["message"].endswith(" tokens > 20000 maximum")


def test_keys_that_are_not_known_are_dropped_within_messages() -> None:
    odd = {"any": {"thing": 1}}
    fields: dict[str, Any] = {
        "system": [text("a", **odd)],
        "messages": [{**turn, **odd, "content": turn["content"]} for turn in turns(result([text("1", **odd)], **odd))],
        "tools": [{**F, "defer_loading": True, "input_examples": [], **odd}],
        "tool_choice": {"type": "auto", **odd},
        "thinking": {"type": "adaptive", **odd},
    }
    ask(tool_engine("hermes", "Hi"), **fields)


def engine_and_models(**headers: str) -> tuple[FakeEngine, Any]:
    engine = tool_engine("hermes", "Hi")
    with client_of(engine) as client:
        return engine, [client.get(path, headers=headers) for path in ("/v1/models", f"/v1/models/{MODEL}")]


def test_models_in_the_shape_that_the_header_asks_for() -> None:
    engine, (listed, one) = engine_and_models(**{"anthropic-version": "2023-06-01"})
    anthropic_types().ModelInfo.model_validate(one.json())
    assert one.json()["max_input_tokens"] == engine.model.max_model_len
    page = listed.json()
    assert page == {"data": [one.json()], "has_more": False, "first_id": MODEL, "last_id": MODEL}
    _, (listed, one) = engine_and_models()
    assert (listed.json()["object"], one.json()["object"]) == ("list", "model")


def test_models_before_and_after_the_one() -> None:
    with client_of(tool_engine("hermes", "Hi")) as client:
        ask_of = {"headers": {"anthropic-version": "2023-06-01"}}
        page = client.get("/v1/models", params={"after_id": MODEL, "limit": 3}, **ask_of)  # type: ignore[arg-type]
        assert page.json() == {"data": [], "has_more": False, "first_id": None, "last_id": None}
        assert client.get("/v1/models", params={"limit": 0}, **ask_of).status_code == 400  # type: ignore[arg-type]
