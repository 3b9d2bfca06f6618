"""Calls whose arguments have marks of their own, and the types that their values get."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgen.server.tool_calls.formats import FORMATS
from jaxgen.server.tool_calls.parser import ToolParser
from jaxgen.server.tool_calls.typed_values import KINDS as KINDS_OF_JSON
from jaxgen.server.tool_calls.typed_values import Schemas, typed
from tests.server.tool_calls.test_parser import written
from tests.support.message_parsers import Make, deltas_of, message, pieces_of

KINDS = sorted(name for name, kind in FORMATS.items() if kind.argument)
SCHEMA: dict[str, Any] = {
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "far": {"type": "boolean"},
        "at": {"$ref": "#/$defs/place"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "share": {"type": ["number", "null"]},
        "any": {},
    },
    "$defs": {"place": {"type": "array", "items": {"type": "number"}}},
}
TOOLS: dict[str, Any] = {"f": {}, "get_weather": SCHEMA}
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "city": st.text(max_size=8).filter(lambda text: "</" not in text),
        "days": st.integers(),
        "far": st.booleans(),
        "at": st.lists(st.integers() | st.floats(allow_nan=False, allow_infinity=False), max_size=3),
        "note": st.none() | st.sampled_from(["null and void", "a\nb", "<", "é"]),
        "share": st.none() | st.integers(),
        "any": st.dictionaries(st.sampled_from("ab"), st.booleans(), max_size=2),
        "other": st.sampled_from(["5", "null", "x"]),
    },
)
FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "<function=f>", "<function=get_weather>", "</function>", "<function=nobody>"),
    *("<parameter=city>", "<parameter=days>", "<parameter=any>", "</parameter>", "<parameter", "<", "</", ">"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "city", "days", "f", "\n", " ", "5", '"'),
    *("<tool_call>get_weather\n", "<tool_call>\n<function=get_weather>\n", "é😀", "plain text. "),
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)


def reader(kind: str, most: int | None = None) -> Make:
    return lambda: ToolParser(FORMATS[kind], TOOLS, most)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=120, deadline=None)
@given(text=TEXTS, cut=st.booleans(), most=st.sampled_from([None, 1]), cuts=st.lists(st.integers(0, 90), max_size=6))
def test_pieces_join_to_the_whole(kind: str, text: str, cut: bool, most: int | None, cuts: list[int]) -> None:
    whole = deltas_of(reader(kind, most), [text], cut=cut)
    assert deltas_of(reader(kind, most), pieces_of(text, cuts), cut=cut) == whole
    assert deltas_of(reader(kind, most), text, cut=cut) == whole
    if len(whole) == 1 and isinstance(whole[0], str) and not cut:
        assert whole[0] == text, "a text without calls is its own content"


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(calls=st.lists(st.tuples(st.just("get_weather"), ARGUMENTS), min_size=1, max_size=3))
def test_what_is_written_in_a_format_is_read_with_its_types(kind: str, calls: list[tuple[str, Any]]) -> None:
    text = "Well. " + written(kind, [(name, json.dumps(arguments)) for name, arguments in calls])
    _, content, found = message(reader(kind), text)
    assert content == "Well."
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_cut_anywhere_shows_nothing_of_marks(kind: str) -> None:
    text = "Well." + written(kind, [("get_weather", '{"city": "a < b", "days": 3}'), ("f", "{}")])
    for length in range(5, len(text) + 1):
        _, content, calls = message(reader(kind), text[:length], cut=True)
        assert content == "Well."
        for (_, arguments), whole in zip(calls, ('{"city": "a < b", "days": 3}', "{}"), strict=False):
            assert whole.startswith(arguments)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_come_out_as_they_are_written(kind: str) -> None:
    text = written(kind, [("get_weather", '{"city": "Paris"}')])
    parser = reader(kind)()
    parser.push(text[: text.index("ris")])
    (delta,) = parser.push("ris")
    assert delta == (0, "ris")
    assert not parser.called


@pytest.mark.parametrize(
    ("kind", "text", "content", "calls"),
    [
        ("qwen3_xml", "<tool_call>\n<function=nobody>\n</function>\n</tool_call>", None, []),
        ("qwen3_xml", "<tool_call>\n{}", None, []),
        ("qwen3_xml", "Use <function=f> here", None, []),
        ("qwen3_xml", "<function=f>\n</function>\n", "", [("f", "{}")]),
        ("qwen3_xml", "<function=f>\n</function>\n</tool_call>\n", "", [("f", "{}")]),
        ("qwen3_xml", "A <function=f>\n</function> B", "A B", [("f", "{}")]),
        (
            "qwen3_xml",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\n\n\n</parameter>\n</function>\n</tool_call>",
            "",
            [("get_weather", '{"city": "\\n"}')],
        ),
        (
            "qwen3_xml",
            "<tool_call><function=get_weather><parameter=city>a</parameter> <parameter=days>2</parameter></function>",
            "",
            [("get_weather", '{"city": "a", "days": 2}')],
        ),
        ("glm45", "<tool_call>f</tool_call> B", " B", [("f", "{}")]),
        ("glm45", "<tool_call>\nf\n</tool_call>", "", [("f", "{}")]),
        ("glm45", "<tool_call>nobody</tool_call>", None, []),
        (
            "glm45",
            "<tool_call>get_weather<arg_key>days</arg_key><arg_value>two</arg_value></tool_call>",
            "",
            [("get_weather", '{"days": "two"}')],
        ),
    ],
)
def test_examples(kind: str, text: str, content: str | None, calls: list[tuple[str, str]]) -> None:
    """``content`` None: all of the text."""
    assert message(reader(kind), text) == ("", text if content is None else content, calls)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, "3", "3"),
        ({"type": "integer"}, "3.0", "3.0"),
        ({"type": "integer"}, "3.5", '"3.5"'),
        ({"type": "integer"}, "true", '"true"'),
        ({"type": "number"}, " 1e3 ", "1e3"),
        ({"type": "number"}, "NaN", '"NaN"'),
        ({"type": "boolean"}, "True", "true"),
        ({"type": "boolean"}, "yes", '"yes"'),
        ({"type": "object"}, '{"a": [null]}', '{"a": [null]}'),
        ({"type": "object"}, "{", '"{"'),
        ({"enum": [1, 2]}, "2", "2"),
        ({"enum": ["1", "2"]}, "2", '"2"'),
        ({"const": None}, "None", "null"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "5", '"5"'),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", "null"),
        ({"$ref": "#/$defs/place"}, "[1, 2]", "[1, 2]"),
        ({"$ref": "#/$defs/nothing"}, "x y", '"x y"'),
        ({}, "5", "5"),
        ({}, '"5"', '"5"'),
        ({}, "é\n", '"é\\n"'),
    ],
)
def test_values_have_the_types_of_the_schema(schema: Any, text: str, value: str) -> None:
    assert typed(text, schema, Schemas(SCHEMA)) == value


def test_references_without_end_are_not_followed_for_ever() -> None:
    loop = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}}
    assert Schemas(loop).kinds({"$ref": "#/$defs/a"}) == {"null"}
    alone = {"$defs": {"a": {"$ref": "#/$defs/a"}}}
    assert Schemas(alone).kinds({"$ref": "#/$defs/a"}) == KINDS_OF_JSON
