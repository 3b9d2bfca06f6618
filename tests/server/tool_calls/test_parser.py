"""Calls of tools found in texts: whole, in pieces, malformed, and where there are none."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgen.server.tool_calls.deltas import Arguments, CallStart, Delta, calls_of, content_of, merged
from jaxgen.server.tool_calls.formats import FORMATS
from jaxgen.server.tool_calls.gemma4 import QUOTE
from jaxgen.server.tool_calls.parser import ToolParser

NAMES: dict[str, dict[str, Any]] = {"f": {}, "get_weather": {}}
KINDS = sorted(name for name, kind in FORMATS.items() if not kind.argument)
"""Whose calls have their arguments as one JSON object."""

FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    *('{"name": "f", ', '"arguments": ', '"parameters": ', '{"a": [{"b": "}]{\\""}]}', "{}", "}", "{", "[", "]", "]"),
    *('"', "\\", ";", ", ", "\n", " ", "f", "get_weather", "é😀", "<", "<tool", "[TOOL", '{"name": "nobody", '),
    *('{"name": "f", "arguments": {"x": 1}}', '{"parameters": {}, "name": "f"}', '"id": "a", ', "plain text. "),
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=12).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(
    st.tuples(st.sampled_from(sorted(NAMES)), st.dictionaries(st.text(max_size=4), VALUES, max_size=3)),
    min_size=1,
    max_size=3,
)
GEMMA4_REPAIRED = [("f", '{"a":"<|","b":"Oslo N","c":null}'), ("f", "{}")]


def parse(kind: str, *pieces: str, most: int | None = None, cut: bool = False) -> tuple[Delta, ...]:
    """The deltas, with ids left out."""
    parser = ToolParser(FORMATS[kind], NAMES, most)
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    deltas += parser.finish(cut=cut)
    assert parser.called <= any(isinstance(delta, CallStart) for delta in deltas)
    return merged([delta._replace(call_id="") if isinstance(delta, CallStart) else delta for delta in deltas])


@pytest.mark.parametrize("most", [None, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_message_of_calls_alone_has_no_content_wherever_it_is_cut(kind: str, most: int | None) -> None:
    text = written(kind, [("f", '{"a": [1, "}"]}'), ("get_weather", "{}")])
    cuts_with_content = 0
    for length in range(len(text) + 1):
        parser = ToolParser(FORMATS[kind], NAMES, most, only_calls=True)
        deltas = [*parser.push(text[:length]), *parser.finish()]
        assert content_of(deltas) == ""
        whole = parse(kind, text[:length], most=most)
        assert [call["function"] for call in calls_of(deltas)] == [call["function"] for call in calls_of(whole)]
        cuts_with_content += content_of(whole) != ""
    assert cuts_with_content > 5, "else nothing was held"


def message(kind: str, text: str, most: int | None = None) -> tuple[str, list[tuple[str, str]]]:
    """Content, and names and arguments of calls."""
    deltas = parse(kind, text, most=most)
    functions = [call["function"] for call in calls_of(deltas)]
    return content_of(deltas), [(function["name"], function["arguments"]) for function in functions]


def written(kind: str, calls: list[tuple[str, str]]) -> str:
    """As a model of that format writes them, and a grammar that demands them."""
    form = FORMATS[kind]
    bodies = [form.before.replace("{name}", name) + _arguments(kind, text) + form.after for name, text in calls]
    return form.opening + form.separator.join(bodies) + form.closing


def answered(kind: str, text: str) -> str:
    """The JSON of arguments as it comes back: quotes of a format's own leave no escapes and no spaces."""
    if not FORMATS[kind].quote:
        return text
    return json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))


def _quoted(match: re.Match[str]) -> str:
    text, colon = match.groups()
    if text is None:
        return ","
    value = json.loads(text)
    return (value if colon and re.fullmatch(r"[\w.$@+-]+", value) else f"{QUOTE}{value}{QUOTE}") + (colon or "").strip()


def _arguments(kind: str, text: str) -> str:
    form = FORMATS[kind].argument
    if FORMATS[kind].quote:
        return re.sub(r'("(?:[^"\\]|\\.)*")(: )?|, ', _quoted, text)
    if not form:
        return text
    values = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in json.loads(text).items()
    }
    return "".join(form.replace("{key}", key).replace("{value}", value) for key, value in values.items())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("calls", [[], [("f", '{"a": [1, "}"]}'), ("get_weather", "{}")]])
def test_an_answer_cut_anywhere_shows_nothing_of_an_unfinished_call(kind: str, calls: list[tuple[str, str]]) -> None:
    text = "Well." + (written(kind, calls) if calls else FORMATS[kind].markers[0])
    if kind == "llama3_json" and calls:
        text = text.replace("{", "<|python_tag|>{", 1)
    for length in range(5, len(text) + 1):
        deltas = parse(kind, text[:length], cut=True)
        assert content_of(deltas) in ("Well.", "Well.;")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=80, deadline=None)
@given(text=TEXTS, most=st.sampled_from([None, 1]), data=st.data())
def test_pieces_join_to_the_whole(kind: str, text: str, most: int | None, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = parse(kind, text, most=most)
    assert parse(kind, *pieces, most=most) == whole
    assert parse(kind, *text, most=most) == whole
    if not any(isinstance(delta, CallStart) for delta in whole):
        assert content_of(whole) == text, "a text without calls is its own content"


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(calls=CALLS, ascii_only=st.booleans())
def test_what_is_written_in_a_format_is_read(kind: str, calls: list[tuple[str, Any]], ascii_only: bool) -> None:
    texts = [(name, json.dumps(arguments, ensure_ascii=ascii_only)) for name, arguments in calls]
    back = [(name, answered(kind, text)) for name, text in texts]
    assert message(kind, written(kind, texts)) == ("", back)
    assert message(kind, written(kind, texts), most=1) == ("", back[:1])


@pytest.mark.parametrize(
    ("kind", "text", "content", "calls"),
    [
        ("hermes", "Let me see.\n<tool_call>\n{}\n</tool_call>", None, []),
        ("hermes", 'A\n\n<tool_call>{"name": "f"}</tool_call>\n', "A", [("f", "{}")]),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>\n B ', "\n B ", [("f", "{}")]),
        ("hermes", '<tool_call>{"arguments":{"a":1},"name":"f"}</tool_call>', "", [("f", '{"a":1}')]),
        ("hermes", '<tool_call>{"id": "7", "name": "f", "arguments": {}, "type": "x"}', "", [("f", "{}")]),
        ("hermes", '<tool_call>{"name": "nobody", "arguments": {}}</tool_call>', None, []),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', "", [("f", "{}")]),
        ("hermes", '<tool_call>{"name": "f", "arguments": "Oslo"}</tool_call>', None, []),
        ("hermes", '<tool_call><tool_call>{"name": "f"}</tool_call>', "<tool_call>", [("f", "{}")]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": ', "", [("f", '{"a": ')]),
        ("hermes", '<tool_call>{"name": "f", "arg', None, []),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>', "", [("f", '{"a": null}')]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}, "why": 1}', "", [("f", "{}")]),
        ("hermes", '<tool_call>{"name": "\\u0066"}</tool_call>', "", [("f", "{}")]),
        ("hermes", '<tool_call>{"name": "f\\"}</tool_call>', None, []),
        ("llama3_json", ' {"name": "f", "parameters": {"a": "x; {"}}', "", [("f", '{"a": "x; {"}')]),
        ("llama3_json", '{"name": "f"}\n{"name": "get_weather"} ; ', "", [("f", "{}"), ("get_weather", "{}")]),
        ("llama3_json", 'I call <|python_tag|>{"name": "f"}', "I call", [("f", "{}")]),
        ("llama3_json", 'Sure: {"name": "f", "parameters": {}}', None, []),
        ("llama3_json", '<|python_tag|>print("x")', None, []),
        ("llama3_json", '{"name": "Ann", "age": 3}', None, []),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "abc"}]', "", [("f", "{}")]),
        ("mistral", '[TOOL_CALLS] [{"name": "f"}, oh', ", oh", [("f", "{}")]),
        ("mistral", "[TOOL_CALLS] []", None, []),
        ("mistral", "[TOOL_CALLS]f{}", "", [("f", "{}")]),
        ("mistral_v11", 'So: [TOOL_CALLS]f[CALL_ID]x1[ARGS] {"a": 1}', "So:", [("f", '{"a": 1}')]),
        ("mistral_v11", "[TOOL_CALLS]nobody[ARGS]{}", None, []),
        ("gemma4", "A <|tool_call>call:f{}<tool_call|> B", "A B", [("f", "{}")]),
        ("gemma4", '<|tool_call>call:f{a:<|"|>x"{\\\n<|<|"|>}<tool_call|>', "", [("f", '{"a":"x\\"{\\\\\\n<|"}')]),
        ("gemma4", '<|tool_call>call:f{<|"|>a<|"|>:{b:[1,<|"|>1<|"|>]}}', "", [("f", '{"a":{"b":[1,"1"]}}')]),
        ("gemma4", '<|tool_call>call:f{a:"<|",b:Oslo N,c:None}<|tool_call>call:f{}', "", GEMMA4_REPAIRED),
        ("gemma4", "<|tool_call>call:f{{a:1}}<tool_call|>", "", [("f", '{"a":1}')]),
        ("gemma4", "<|tool_call>call:nobody{}<tool_call|>", None, []),
        ("gemma4", "<|tool_call>call:f\n{}", None, []),
        ("gemma4", "call:f{}", None, []),
        ("gemma4", '<|tool_call>call:f{a:<|"|>b', "", [("f", '{"a":"b')]),
    ],
)
def test_examples(kind: str, text: str, content: str | None, calls: list[tuple[str, str]]) -> None:
    """``content`` None: all of the text."""
    assert message(kind, text) == (text if content is None else content, calls)


def test_arguments_come_out_as_they_are_written() -> None:
    parser = ToolParser(FORMATS["hermes"], NAMES, None)
    assert parser.push('Hm <tool_call>\n{"name": "f", "arguments"') == ("Hm",)
    assert [type(delta) for delta in parser.push(': {"a": "x')] == [CallStart, Arguments]
    assert parser.push("y") == (Arguments(0, "y"),)
    assert not parser.done


def test_a_message_of_one_call_is_over_with_it() -> None:
    parser = ToolParser(FORMATS["mistral"], NAMES, 1)
    parser.push('[TOOL_CALLS] [{"name": "f", "arguments": {')
    assert not parser.done
    parser.push('}}, {"name": "f"')
    assert parser.done
    assert parser.called
    assert parser.finish() == ()


def test_long_texts_take_time_in_proportion() -> None:
    """Held text is never read again: each character is sent once, however often a call seems to begin."""
    text = '<tool_call>{"name": "' * 20_000
    assert content_of(parse("hermes", text)) == text


@pytest.mark.parametrize("kind", sorted(FORMATS))
def test_a_marker_begins_with_a_character_of_its_own(kind: str) -> None:
    """On which reading content relies."""
    assert all(marker.count(marker[0]) == 1 for marker in FORMATS[kind].markers)
