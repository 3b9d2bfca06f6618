"""Which grammar an answer of a model that reasons gets: of what comes after the reasoning."""

from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from tests.server.api.test_reasoning import CLOSED, ENDS, FINAL, OPEN, thinks
from tests.server.tool_calls.test_parser import written
from tests.support.fakes import FakeEngine
from tests.support.server_app import error_of
from tests.support.tool_engines import tool_engine
from tests.support.tool_requests import HI, PARIS, ask

OBJECT = {"response_format": {"type": "json_object"}}
DEMANDED = {"tool_choice": "required"}
CALL = written("hermes", [PARIS])
HARMONY_CALL = f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{PARIS[1]}"
ANALYSIS = f"<|channel|>analysis<|message|>Hm{ENDS}"


def allowed(engine: FakeEngine, text: str, **fields: Any) -> bool:
    """Whether the grammar of a request for these fields allows the text."""
    ask(engine, **fields)
    grammar = engine.requests[-1].params.grammar
    assert grammar is not None
    matcher = LLMatcher(LLTokenizer(engine.tokenizer.to_json() or "", eos_token=1), grammar.text, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return bool(matcher.consume_tokens(engine.tokenizer.encode(text, special=False)) and matcher.is_accepting())


@pytest.mark.parametrize(
    ("parser", "fields", "yes", "no"),
    [
        ("qwen3", OBJECT, ["{}", "<think>Hm</think>\n\n{}"], ["Hm</think>{}", "<think>{}", CALL]),
        ("qwen3", OBJECT | OPEN, ["Hm</think>{}"], ["{}", "<think>"]),
        ("qwen3", OBJECT | CLOSED, ["{}"], ["Hm</think>{}"]),
        ("deepseek_r1", OBJECT, ["Hm</think>{}"], ["{}"]),
        ("openai_gptoss", OBJECT, [FINAL + "{}", ANALYSIS + FINAL + "{}"], ["{}", FINAL + "no", HARMONY_CALL]),
    ],
)
def test_a_format_is_of_what_comes_after_reasoning(
    parser: str, fields: dict[str, Any], yes: list[str], no: list[str]
) -> None:
    for text in yes + no:
        assert allowed(thinks("", parser), text, tools=None, **fields) == (text in yes), text


@pytest.mark.parametrize(
    ("parser", "fields", "yes", "no"),
    [
        ("qwen3", DEMANDED | OPEN, [f"Hm</think>{CALL}"], [CALL, "Hm</think>{}"]),
        ("qwen3", OBJECT | OPEN, [f"Hm</think>{CALL}", "Hm</think>{}"], [CALL, "Hm</think>no"]),
        ("openai_gptoss", DEMANDED, [HARMONY_CALL, ANALYSIS + HARMONY_CALL], [FINAL + "{}", PARIS[1]]),
        ("openai_gptoss", OBJECT, [ANALYSIS + HARMONY_CALL, FINAL + "{}"], ["{}"]),
    ],
)
def test_so_are_calls(parser: str, fields: dict[str, Any], yes: list[str], no: list[str]) -> None:
    for text in yes + no:
        assert allowed(thinks("", parser), text, **fields) == (text in yes), text


def test_a_grammar_in_gbnf_becomes_a_part() -> None:
    fields = {"structured_outputs": {"grammar": 'root ::= "yes" | "no"'}, "tools": None}
    for parser, before in (("qwen3", "<think>Hm</think>"), ("openai_gptoss", ANALYSIS + FINAL)):
        assert allowed(thinks("", parser), before + "yes", **fields)
        assert not allowed(thinks("", parser), before + "maybe", **fields)
    bad = fields | {"structured_outputs": {"grammar": "root ::= ("}}
    assert error_of(ask(thinks(""), 400, **bad))["param"] == "structured_outputs"
    empty = {"tools": None, "structured_outputs": {"grammar": ""}}
    assert error_of(ask(tool_engine("hermes", ""), 400, **empty))["param"] == "structured_outputs"


def test_an_answer_that_goes_on_has_the_grammar_of_its_content_alone() -> None:
    messages = [HI, {"role": "assistant", "content": "{"}]
    fields = {"messages": messages, "continue_final_message": True, "tools": None}
    grammar = {"structured_outputs": {"regex": "}"}}
    for parser in ("qwen3", "openai_gptoss"):
        assert allowed(thinks("", parser), "}", **fields, **grammar)


def test_without_reasoning_the_grammar_is_the_callers() -> None:
    engine = tool_engine("hermes", "")
    ask(engine, tools=None, structured_outputs={"grammar": "start: /a/"})
    grammar = engine.requests[0].params.grammar
    assert grammar is not None
    assert (grammar.text, grammar.source) == ("start: /a/", "structured_outputs")
