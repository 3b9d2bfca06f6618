"""Grammars that demand calls: what they allow, as llguidance reads them."""

import json
from functools import cache
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken

from jaxgen.server.requests.structured import json_grammar
from jaxgen.server.tool_calls.formats import FORMATS
from jaxgen.server.tool_calls.grammar import after_thinking, call_grammar, either, harmony_answer, harmony_calls
from jaxgen.server.tool_calls.grammar_rules import UnwritableError
from jaxgen.server.tool_calls.harmony import NAMES
from jaxgen.server.tool_calls.thinking import CHANNEL_MARKS, THINK_MARKS, ThinkMarks
from jaxgen.text.tokenizer import Tokenizer
from tests.server.tool_calls.test_parser import KINDS, answered, message, written
from tests.support import tiny_tokenizers

PARAMETERS = {
    "properties": {"city": {"$ref": "#/$defs/name"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "minLength": 1}},
}
TOOLS = [("get_weather", PARAMETERS), ("f", {"type": "object", "properties": {}, "additionalProperties": False})]
PARIS = ("get_weather", '{"city": "Paris, \\"}", "days": 3}')
F = ("f", "{}")


@cache
def with_markers(special: bool | None) -> tuple[Tokenizer, LLTokenizer]:
    """``special`` None: markers are no tokens of their own."""
    backend = tiny_tokenizers.byte_level()
    if special is not None:
        markers = sorted(
            {marker for kind in FORMATS.values() for marker in kind.markers}
            | {*THINK_MARKS.tokens, *CHANNEL_MARKS.tokens, *NAMES}
        )
        backend.add_tokens([AddedToken(marker, special=special) for marker in markers])
    return Tokenizer(backend), LLTokenizer(backend.to_str(), eos_token=1)


def accepts(kind: str, text: str, special: bool | None = None, **options: Any) -> bool:
    tokenizer, _ = with_markers(special)
    options = {"several": True, "token_of": tokenizer.added_token, **options}
    return allows(call_grammar(FORMATS[kind], options.pop("tools", TOOLS), **options), text, special)


def allows(grammar: str, text: str, special: bool | None) -> bool:
    tokenizer, checker = with_markers(special)
    matcher = LLMatcher(checker, LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.get_error()
    tokens = tokenizer.encode(text, special=False)
    return bool(matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens)) and bool(
        matcher.is_accepting()
    )


@pytest.mark.parametrize("special", [None, False, True])
@pytest.mark.parametrize("kind", sorted(FORMATS))
def test_calls_as_the_model_writes_them_are_allowed_and_read(kind: str, special: bool | None) -> None:
    for calls in ([PARIS], [F], [PARIS, F, F]):
        text = written(kind, calls)
        assert accepts(kind, text, special), text
        if not FORMATS[kind].argument:
            assert message(kind, text) == ("", [(name, answered(kind, arguments)) for name, arguments in calls])
    assert not accepts(kind, written(kind, [F, F]), special, several=False)
    assert not accepts(kind, written(kind, [PARIS]), special, tools=TOOLS[1:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("get_weather", "{}"),
        ("get_weather", '{"city": ""}'),
        ("get_weather", '{"city": "a", "days": "b"}'),
        ("get_weather", '{"city": "a", "more": 1}'),
        ("get_weather", '{ "city": "a"}'),
        ("get_weather", "[]"),
        ("f", '{"a": 1}'),
        ("nobody", "{}"),
    ],
)
def test_calls_that_the_schemas_do_not_allow_are_not(kind: str, name: str, arguments: str) -> None:
    assert not accepts(kind, written(kind, [(name, arguments)]))
    assert not accepts(kind, "text" + written(kind, [F]))


@pytest.mark.parametrize("special", [None, True])
def test_a_space_after_a_marker_may_be_left_out(special: bool | None) -> None:
    text = written("mistral", [F])
    assert text.startswith("[TOOL_CALLS] [{")
    assert accepts("mistral", text, special)
    assert accepts("mistral", text.replace("] [", "][", 1), special)
    assert not accepts("mistral", text.replace("] [", "]  [", 1), special)


def test_one_or_the_other() -> None:
    answer = json_grammar({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    token_of = with_markers(True)[0].added_token
    both = either(answer, call_grammar(FORMATS["hermes"], TOOLS, several=True, token_of=token_of))
    assert allows(both, '{"a":1}', True)
    assert allows(both, written("hermes", [PARIS, F]), True)
    assert not allows(both, "{}", True)
    assert not allows(both, '{"a":1}' + written("hermes", [F]), True)


def test_any_object_is_allowed_where_nothing_is_said() -> None:
    for schema in ({}, {"type": "object"}):
        for arguments in ("{}", '{"a": [1, {"b": null}]}'):
            assert accepts("hermes", written("hermes", [("f", arguments)]), tools=[("f", schema)])
        assert not accepts("hermes", written("hermes", [("f", "[]")]), tools=[("f", schema)])


def test_schemas_are_json_whatever_is_in_them() -> None:
    odd = {"properties": {'%json {"\n//': {"const": 'é"\\\n}'}}, "required": ['%json {"\n//']}
    arguments = json.dumps({'%json {"\n//': 'é"\\\n}'}, ensure_ascii=False)
    assert accepts("hermes", written("hermes", [("f", arguments)]), tools=[("f", odd)])


PLACES = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "at": {"type": "array", "items": {"$ref": "#/$defs/place"}, "minItems": 1, "maxItems": 2},
        "mode": {"enum": ["a", 1, None, ["x"]]},
        "no plain key": {"anyOf": [{"type": "string", "pattern": "^[a-z]+$"}, {"type": "null"}]},
    },
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"name": {"type": "string"}, "in": {"$ref": "#/$defs/place"}}}},
}


@pytest.mark.parametrize("special", [None, True])
@pytest.mark.parametrize(
    ("inner", "allowed"),
    [
        ("", True),
        ('city:<|"|>a, "b" {\\<|"|>', True),
        ('mode:<|"|>a<|"|>', True),
        ("mode:1", True),
        ('mode:["x"]', True),
        ('at:[{name:<|"|>a<|"|>,in:{in:{}}},{}],mode:null', True),
        ('<|"|>no plain key<|"|>:<|"|>a<|"|>', True),
        ('city:<|"|>a<|"|>,at:[{}],<|"|>no plain key<|"|>:null', True),
        ("at:[]", False),
        ("at:[{},{},{}]", False),
        ('at:[{name:"a"}]', False),
        ('mode:<|"|>1<|"|>', False),
        ('mode:1,city:<|"|>a<|"|>', False),
        (",mode:1", False),
        ("mode:1,", False),
        ("mode:1 ", False),
        ("city:a", False),
        ('more:<|"|>a<|"|>', False),
        ('<|"|>no plain key<|"|>:<|"|>1<|"|>', False),
    ],
)
def test_arguments_of_gemma4_have_its_quotes_at_every_depth(inner: str, allowed: bool, special: bool | None) -> None:
    text = f"<|tool_call>call:f{{{inner}}}<tool_call|>"
    assert accepts("gemma4", text, special, tools=[("f", PLACES)]) == allowed


def test_arguments_that_gemma4_cannot_write_are_refused_or_left_out() -> None:
    never = {"properties": {"a": {"type": "string", "enum": ['<|"|>']}}}
    assert accepts("gemma4", "<|tool_call>call:f{}<tool_call|>", tools=[("f", never)])
    with pytest.raises(UnwritableError, match="the argument 'a' is required, and cannot be written"):
        accepts("gemma4", "", tools=[("f", {**never, "required": ["a"]})])


MARKED_KINDS = sorted(set(FORMATS) - set(KINDS))


@pytest.mark.parametrize("kind", MARKED_KINDS)
@pytest.mark.parametrize(
    ("calls", "allowed"),
    [
        ([("get_weather", '{"city": "a < b\\n"}')], True),
        ([("get_weather", '{"city": "a", "days": "b"}')], False),
        ([("get_weather", '{"days": 3}')], False),
        ([("get_weather", '{"city": "a", "more": "b"}')], False),
        ([("f", '{"a": "b"}')], False),
        ([("nobody", "{}")], False),
    ],
)
def test_arguments_with_marks_are_those_of_the_schemas(kind: str, calls: list[tuple[str, str]], allowed: bool) -> None:
    assert accepts(kind, written(kind, calls)) == allowed


@pytest.mark.parametrize("special", [None, False, True])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("marks", [THINK_MARKS, CHANNEL_MARKS])
def test_an_answer_may_come_after_reasoning(special: bool | None, inside: bool, marks: ThinkMarks) -> None:
    token_of = with_markers(special)[0].added_token
    grammar = after_thinking(json_grammar({"type": "object"}), marks, token_of, inside=inside)
    opened, closed = "" if inside else marks.begin, marks.end
    for thought in ("", f"\nHm {{}}, <b> {closed[:-1]} \n"):
        for gap in ("", "\n\n"):
            assert allows(grammar, f"{opened}{thought}{closed}{gap}{{}}", special)
    assert not allows(grammar, f"{opened}Hm{closed}no", special)
    assert not allows(grammar, f"{opened}Hm", special)
    assert not allows(grammar, f"{opened}Hm{closed}{{}} {closed}{{}}", special)
    assert allows(grammar, "{}", special) != inside


@pytest.mark.parametrize("special", [False, True])
def test_an_answer_in_harmony_has_its_channels(special: bool) -> None:
    token_of = with_markers(special)[0].added_token
    content, calls = json_grammar({"type": "object"}), harmony_calls(TOOLS, token_of)
    thought = "<|channel|>analysis<|message|>Hm {}<|end|><|start|>assistant"
    final = "<|channel|>final<|message|>{}"
    call = f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{PARIS[1]}"
    for one, other, allowed in ((content, calls, {final, call}), (content, None, {final}), (None, calls, {call})):
        grammar = harmony_answer(one, other, token_of)
        for text in (final, call):
            assert allows(grammar, text, special) == (text in allowed)
            assert allows(grammar, thought + text, special) == (text in allowed)
        assert not allows(grammar, "{}", special)
        assert not allows(grammar, final + "x", special)
    final = "<|channel|>final <|constrain|>json<|message|>{}"
    assert allows(harmony_answer(content, None, token_of), final, special)
