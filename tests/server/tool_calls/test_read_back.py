"""What a grammar of calls can write, the reader reads back as calls whose arguments are of the tool's schema."""

import json
import random
import sys
from functools import cache
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from jaxgen.server.requests.grammar_schemas import for_grammar
from jaxgen.server.requests.structured import without_other_keys
from jaxgen.server.tool_calls.formats import FORMATS
from jaxgen.server.tool_calls.grammar import call_grammar, harmony_calls
from jaxgen.server.tool_calls.harmony import MARKS, HarmonyParser
from jaxgen.server.tool_calls.parser import MessageParser, ToolParser
from jaxgen.server.tool_calls.recognised import HARMONY_CALLS
from jaxgen.text.grammar_compiler import _limits
from tests.server.tool_calls.test_grammar import with_markers
from tests.support.message_parsers import deltas_of, message, pieces_of

KINDS = [*sorted(FORMATS), HARMONY_CALLS]
LEAVES: list[Any] = [
    *({"type": "string"}, {"type": "string", "enum": ["list", "lists", "a b", "5", "</parameter>"]}, {"const": "x"}),
    *(
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"type": ["string", "null"], "minLength": 5},
        {"enum": ["1", 1, None]},
    ),
    *({"type": "integer", "minimum": 3}, {"type": "number"}, {"type": "boolean"}, {"type": "null"}, {}, True),
    *({"type": ["integer", "string"]}, {"anyOf": [{"type": "integer", "minimum": 10}, {"type": "string"}]}),
    *({"$ref": "#/$defs/name"}, {"$ref": "#/$defs/tree"}, {"allOf": [{"$ref": "#/$defs/name"}], "description": "d"}),
    *({"type": "array", "items": {"type": "string"}}, {"type": "object", "properties": {"k": {"type": "string"}}}),
    *({"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "string"}, {"type": "null"}]},),
    *(
        {"type": "string", "pattern": "^[a-z]{1,3}-[0-9]+$"},
        {"type": "string", "maxLength": 4},
        {"oneOf": [{"const": "on"}, {"type": "integer"}]},
    ),
    *({"type": "string", "format": "date"}, {"not": {"type": "null"}, "type": "string"}, {"type": "object"}),
]
DEFINITIONS = {
    "name": {"type": "string", "minLength": 1},
    "tree": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}}},
}
PIECES = [
    *(
        "\n</parameter>\n",
        "</parameter>",
        "</function>",
        "</tool_call>",
        "<parameter=b>",
        "\n<parameter=b>\n",
        "</arg_value>",
    ),
    *(
        "</arg_value>\n",
        "<arg_key>",
        "</a>",
        "\n",
        " ",
        "null",
        "None",
        "True",
        "true",
        "5",
        "12",
        "1e3",
        '"',
        "'",
        "\\",
        "{",
        "[",
        "]",
    ),
    *(
        "}",
        '"k"',
        "x",
        "é",
        "<",
        "</",
        "<tool_call>",
        "list",
        "on",
        "abc-1",
        "2024-01-31",
        ";",
        "{'a': 1}",
        "[TOOL_CALLS]",
        '<|"|>',
        "<tool_call|>",
    ),
]
ENDS = [
    "\n</parameter>\n",
    "</arg_value>\n",
    "</arg_value>",
    '"',
    "}",
    "]",
    "5",
    "null",
    "x",
    "2024-01-31",
    "</function>\n</tool_call>",
    '<|"|>',
    "<tool_call|>",
]


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    """Schemas of arguments: of one to three members, plain, by a reference, of parts, or of alternatives."""
    members = {
        key: draw(st.sampled_from(LEAVES)) for key in draw(st.sets(st.sampled_from(["a", "b", "c d"]), min_size=1))
    }
    required = sorted(draw(st.sets(st.sampled_from(sorted(members)))))
    own: dict[str, Any] = {"type": "object", "properties": members, "required": required}
    other = {"type": "object", "properties": {"z": {"type": "integer"}}, "required": ["z"]}
    shape = draw(st.sampled_from(["plain", "plain", "open", "reference", "parts", "alternatives"]))
    made = {
        "plain": own,
        "open": {"type": "object", "additionalProperties": draw(st.sampled_from([True, {"type": "integer"}]))},
        "reference": {"$ref": "#/$defs/all"},
        "parts": {"allOf": [own, other]},
        "alternatives": {"anyOf": [own, other]},
    }[shape]
    return {**made, "$defs": {**DEFINITIONS, "all": own}}


def grammar_of(kind: str, schema: dict[str, Any], special: bool | None) -> str:
    token_of = with_markers(special)[0].added_token
    tools = [("f", without_other_keys(for_grammar(schema, lenient=True), "tools"))]
    if kind == HARMONY_CALLS:
        return harmony_calls(tools, token_of)
    return call_grammar(FORMATS[kind], tools, several=True, token_of=token_of)


def reader_of(kind: str, schema: dict[str, Any]) -> MessageParser:
    if kind == HARMONY_CALLS:
        harmony = HarmonyParser({"f": schema})
        harmony.begin("assistant")
        return harmony
    return ToolParser(FORMATS[kind], {"f": schema}, None)


def walk(grammar: str, special: bool | None, chance: random.Random, steps: int) -> str | None:
    """A text of the grammar: drawn, with a liking for PIECES, then led to its end; None: not within the steps."""
    checker = with_markers(special)[1]
    matcher = LLMatcher(checker, LLMatcher.grammar_from_lark(grammar), log_level=0, limits=_limits())
    assert not matcher.get_error(), (matcher.get_error(), grammar)
    mask = allocate_token_bitmask(1, checker.vocab_size)
    found: list[int] = []

    def take(tokens: list[int]) -> bool:
        if matcher.validate_tokens(tokens) < len(tokens) or not matcher.consume_tokens(tokens):
            return False
        found.extend(tokens)
        return True

    for step in range(4 * steps):
        if matcher.is_stopped() or (matcher.is_accepting() and (step > steps or chance.random() < 0.3)):
            break
        pieces = chance.sample(PIECES, 8) if step < steps else chance.sample(ENDS, len(ENDS))
        spell = chance.random() < 0.5
        if (step >= steps or chance.random() < 0.8) and any(take(tokens_of(special, one, spell)) for one in pieces):
            continue
        fill_next_token_bitmask(matcher, mask)
        assert not matcher.get_error(), matcher.get_error()
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        if not take([int(chance.choice(allowed))]):
            break
    return text_of(special, found) if matcher.is_accepting() else None


@cache
def tokens_of(special: bool | None, piece: str, spelled: bool) -> list[int]:
    """The tokens of a text; ``spelled``: of its characters one by one, so that no mark is a token."""
    encode = with_markers(special)[0].encode
    return [token for part in (piece if spelled else [piece]) for token in encode(part, special=False)]


def text_of(special: bool | None, tokens: list[int]) -> str:
    tokenizer, _ = with_markers(special)
    marks = {tokenizer.added_token(name): mark.encode("utf-8", "surrogatepass") for name, mark in MARKS.items()}
    text = b"".join(marks.get(token) or tokenizer.text_bytes(token) for token in tokens if token != 1)
    return text.decode("utf-8", "surrogatepass")


def check(kind: str, schema: dict[str, Any], special: bool | None, seed: int, cuts: list[int], steps: int) -> bool:
    """Whether a text was found. What it says is what the schema allows, whole and in pieces."""
    text = walk(grammar_of(kind, schema, special), special, random.Random(seed), steps)
    if text is None:
        return False

    def make() -> MessageParser:
        return reader_of(kind, schema)

    reasoning, content, calls = message(make, text)
    assert (reasoning, content) == ("", ""), text
    assert calls, text
    validator = jsonschema_rs.validator_for(without_unchecked(schema))
    for name, arguments in calls:
        assert name == "f"
        assert validator.is_valid(json.loads(arguments, parse_float=finite)), (text, arguments)
    assert deltas_of(make, pieces_of(text, cuts)) == deltas_of(make, [text])
    return True


def finite(text: str) -> float:
    """The number, or the largest one: the validator takes what is beyond for none."""
    return max(-sys.float_info.max, min(float(text), sys.float_info.max))


def without_unchecked(schema: Any) -> Any:
    """The schema without what a grammar leaves out."""
    if isinstance(schema, dict):
        return {key: without_unchecked(one) for key, one in schema.items() if key != "not"}
    return [without_unchecked(one) for one in schema] if isinstance(schema, list) else schema


CASES = {
    "schema": schemas(),
    "special": st.sampled_from([None, False]),
    "seed": st.integers(0, 2**32),
    "cuts": st.lists(st.integers(0, 200), max_size=5),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(**CASES)
def test_what_the_grammar_writes_is_read(
    kind: str, schema: dict[str, Any], special: bool | None, seed: int, cuts: list[int]
) -> None:
    check(kind, schema, False if kind == HARMONY_CALLS else special, seed, cuts, 25)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=600, deadline=None)
@given(**CASES)
def test_what_the_grammar_writes_is_read_often(
    kind: str, schema: dict[str, Any], special: bool | None, seed: int, cuts: list[int]
) -> None:
    """Full: some minutes."""
    check(kind, schema, False if kind == HARMONY_CALLS else special, seed, cuts, 60)


def test_walks_come_to_an_end() -> None:
    """Else nothing was checked."""
    for kind in KINDS:
        schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {}}, "required": ["a"]}
        assert sum(check(kind, schema, False, seed, [], 20) for seed in range(8)) > 3, kind
