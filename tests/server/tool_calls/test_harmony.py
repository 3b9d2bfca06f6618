"""Channels of harmony: reasoning, content and calls in the messages of an answer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgen.server.tool_calls.harmony import MARKS, NAMES, HarmonyParser
from tests.support.message_parsers import Make, content_places, deltas_of, message, pieces_of

WORDS = ["assistant", "analysis", "final", "commentary", " to=functions.f ", " to=python ", "json", '{"a": 1}', "{}"]
TEXTS = st.lists(st.sampled_from([*MARKS.values(), *WORDS, " ", "Hm", "<|end|>"]), max_size=14).map("".join)
PREAMBLE = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"


def marked(text: str) -> str:
    for name, char in MARKS.items():
        text = text.replace(name, char)
    return text


def reader(opening: str = "assistant", most: int | None = None, *, reasoning: bool = True) -> Make:
    def make() -> HarmonyParser:
        parser = HarmonyParser(("f", "g"), most, reasoning=reasoning)
        parser.begin(marked(opening))
        return parser

    return make


@settings(max_examples=150, deadline=None)
@given(text=TEXTS, cut=st.booleans(), most=st.sampled_from([None, 1]), cuts=st.lists(st.integers(0, 60), max_size=6))
def test_pieces_join_to_the_whole_without_marks(text: str, cut: bool, most: int | None, cuts: list[int]) -> None:
    whole = deltas_of(reader(most=most), [text], cut=cut)
    assert deltas_of(reader(most=most), pieces_of(text, cuts), cut=cut) == whole
    assert deltas_of(reader(most=most), text, cut=cut) == whole
    str(whole).encode()  # no mark is left, which no encoding has
    assert not any(char in repr(delta) for char in map(repr, MARKS.values()) for delta in whole)


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls"),
    [
        (THOUGHT + "<|channel|>final<|message|>Hello<|return|>", "Hm.", "Hello", []),
        ("<|channel|>final<|message|>Hello", "", "Hello", []),
        ("<|channel|>final <|constrain|>json<|message|>{}", "", "{}", []),
        (THOUGHT + PREAMBLE + CALL + "<|call|>", "Hm.", "I look.", [("f", '{"a": 1}')]),
        (CALL + "<|call|>more", "", "", [("f", '{"a": 1}')]),
        (" to=functions.g<|channel|>commentary json<|message|>", "", "", [("g", "{}")]),
        ("<|channel|>analysis to=functions.f code<|message|>{}", "", "", [("f", "{}")]),
        ("<|channel|>commentary to=g<|message|>{}<|call|>", "", "", [("g", "{}")]),
        ("<|channel|>analysis to=python code<|message|>1+1", "1+1", "", []),
        ("<|channel|>commentary to=functions.nobody<|message|>{}", "", "{}", []),
        ("<|message|>Hello", "", "Hello", []),
        ("Hello", "", "Hello", []),
        ("<|channel|>final<|message|>It is <|mess or <|message| >.", "", "It is <|mess or <|message| >.", []),
        ("<|channel|>analysis<|message|>Hm.<|end|>assistant<|channel|>final<|message|>A", "Hm.", "A", []),
        ("<|channel|>analysis<|message|>Hm.<|start|>assistant<|channel|>final<|message|>A", "Hm.", "A", []),
        ("", "", "", []),
    ],
)
def test_examples(text: str, reasoning: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert message(reader(), marked(text)) == (reasoning, content, calls)


def test_the_names_of_marks_in_other_tokens_are_text() -> None:
    text = "Write <|channel|>analysis<|message|>."
    assert message(reader(), marked("<|channel|>final<|message|>") + text) == ("", text, [])


def test_the_prompt_may_have_begun_the_message() -> None:
    assert message(reader("assistant<|channel|>final<|message|>Yes"), " and no") == ("", " and no", [])
    assert message(reader("assistant<|channel|>analysis<|message|>"), marked("Hm<|end|>")) == ("Hm", "", [])
    assert content_places(reader("assistant<|channel|>final<|message|>Yes"), "no") == [0, 1]


def test_without_reasoning_the_analysis_is_content() -> None:
    text = marked(THOUGHT + "<|channel|>final<|message|>Hello")
    assert message(reader(reasoning=False), text) == ("", "Hm.Hello", [])


def test_an_answer_cut_anywhere_shows_no_header() -> None:
    text = marked(THOUGHT + PREAMBLE + CALL)
    for length in range(len(text) + 1):
        parser = reader()()
        parser.push(text[:length])
        parser.finish(cut=True)
        assert not parser.called
        reasoning, content, calls = message(reader(), text[:length], cut=True)
        assert "Hm.".startswith(reasoning)
        assert "I look.".startswith(content)
        assert all(name == "f" and '{"a": 1}'.startswith(arguments) for name, arguments in calls)


def test_a_call_is_complete_with_its_mark_or_as_an_object() -> None:
    for end, called in (("", False), ("}", True), ("<|call|>", True)):
        parser = reader()()
        parser.push(marked('<|channel|>commentary to=functions.f<|message|>{"a": 1' + end))
        parser.finish()
        assert parser.called == called


def test_the_last_allowed_call_ends_the_message() -> None:
    parser = reader(most=1)()
    assert parser.push(marked(CALL))
    assert not parser.done
    assert parser.push(marked("<|end|><|start|>assistant<|channel|>final<|message|>Hello")) == ()
    assert parser.done


def test_where_content_is_in_the_text() -> None:
    text = marked(THOUGHT + PREAMBLE + "<|channel|>final<|message|>Hello")
    first, second = text.index("I look."), text.index("Hello")
    assert content_places(reader(), text) == [*range(first, first + 7), *range(second, second + 5)]


def test_marks_are_no_characters_of_a_text() -> None:
    assert len(set(MARKS.values())) == len(NAMES)
    for mark in MARKS.values():
        with pytest.raises(UnicodeEncodeError):
            mark.encode()
