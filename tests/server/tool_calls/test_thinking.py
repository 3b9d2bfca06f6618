"""Reasoning in a model's text: with and without marks, cut, and before calls."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgen.server.tool_calls.formats import FORMATS
from jaxgen.server.tool_calls.parser import ToolParser
from jaxgen.server.tool_calls.thinking import CHANNEL_MARKS, END_THINK, THINK, ThinkParser
from tests.support.message_parsers import Make, content_places, deltas_of, message, pieces_of

INTERRUPTS = FORMATS["qwen3_xml"].interrupts
CALL = "<tool_call>\n<function=f>\n</function>\n</tool_call>"
FRAGMENTS = [THINK, END_THINK, "<", "</", "think>", "<th", "\n", " ", "\n\n", "Hm", "a < b", "é", CALL, "<tool_call>"]
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=2), max_size=10).map("".join)


def thinker(*, inside: bool = False, calls: bool = False) -> Make:
    def make() -> ThinkParser:
        answer = ToolParser(FORMATS["qwen3_xml"], {"f": {}}, None) if calls else None
        return ThinkParser(answer, inside=inside, interrupts=INTERRUPTS if calls else "")

    return make


@settings(max_examples=150, deadline=None)
@given(
    text=TEXTS,
    inside=st.booleans(),
    calls=st.booleans(),
    cut=st.booleans(),
    cuts=st.lists(st.integers(0, 60), max_size=6),
)
def test_pieces_join_to_the_whole(text: str, inside: bool, calls: bool, cut: bool, cuts: list[int]) -> None:
    make = thinker(inside=inside, calls=calls)
    whole = deltas_of(make, [text], cut=cut)
    assert deltas_of(make, pieces_of(text, cuts), cut=cut) == whole
    assert deltas_of(make, text, cut=cut) == whole


@settings(max_examples=120, deadline=None)
@given(text=TEXTS, inside=st.booleans())
def test_nothing_is_lost_but_marks_and_white_space(text: str, inside: bool) -> None:
    reasoning, content, _ = message(thinker(inside=inside), text)
    kept = "".join((reasoning + content).split())
    bare = "".join(text.split())
    assert kept in (bare, *(bare.replace(mark, "", 1) for mark in (THINK, END_THINK)), _without_both(bare))


def _without_both(text: str) -> str:
    return text.replace(THINK, "", 1).replace(END_THINK, "", 1)


@pytest.mark.parametrize(
    ("inside", "text", "reasoning", "content"),
    [
        (False, "<think>\nHm.\n\nYes.\n</think>\n\nHello\n", "Hm.\n\nYes.", "Hello\n"),
        (False, " \n<think>Hm</think>", "Hm", ""),
        (False, "<think>\n\n</think>\n\nHello", "", "Hello"),
        (False, "Hello <think>Hm</think>", "", "Hello <think>Hm</think>"),
        (False, "Hello</think> you", "", "Hello</think> you"),
        (False, " Hello", "", " Hello"),
        (False, "  <thin", "", "  <thin"),
        (False, "", "", ""),
        (True, "Hm.\n</think>\n\nHello</think>", "Hm.", "Hello</think>"),
        (True, "\n<think>\nHm</think>Hello", "Hm", "Hello"),
        (True, "Hm <think> </think>Hello", "Hm <think>", "Hello"),
        (True, "a < b </thing> ", "a < b </thing>", ""),
        (True, "</think>Hello", "", "Hello"),
        (True, "Hm </thin", "Hm </thin", ""),
    ],
)
def test_examples(inside: bool, text: str, reasoning: str, content: str) -> None:
    assert message(thinker(inside=inside), text) == (reasoning, content, [])


@pytest.mark.parametrize(
    ("inside", "text", "reasoning", "content", "calls"),
    [
        (False, "<|channel>thought\nHm.\n\nYes.\n<channel|>Hello", "Hm.\n\nYes.", "Hello", []),
        (False, "<|channel>thought\n<channel|>Hello", "", "Hello", []),
        (False, "<|channel>final\nHello", "", "<|channel>final\nHello", []),
        (False, "<|channel>thought\na <channel| b", "a <channel| b", "", []),
        (True, "\nHm <think></think><channel|>\nHello", "Hm <think></think>", "Hello", []),
        (True, "<|channel>thought\nHm<channel|>Hello", "Hm", "Hello", []),
        (True, "Hm\n<|tool_call>call:f{}<tool_call|>", "Hm", "", [("f", "{}")]),
        (False, "<|channel>thought\nHm<channel|>So<|tool_call>call:f{}<tool_call|>", "Hm", "So", [("f", "{}")]),
    ],
)
def test_examples_of_gemma4(
    inside: bool, text: str, reasoning: str, content: str, calls: list[tuple[str, str]]
) -> None:
    form = FORMATS["gemma4"]

    def make() -> ThinkParser:
        answer = ToolParser(form, {"f": {}}, None)
        return ThinkParser(answer, CHANNEL_MARKS, inside=inside, interrupts=form.interrupts)

    assert message(make, text) == (reasoning, content, calls)


def test_calls_come_after_it_or_end_it() -> None:
    make = thinker(inside=True, calls=True)
    assert message(make, f"Hm\n</think>\n\nI look.\n{CALL}") == ("Hm", "I look.", [("f", "{}")])
    assert message(make, f"Hm\n{CALL}") == ("Hm", "", [("f", "{}")])
    assert message(make, f"A <tool_call> is none.\n</think>{CALL}") == ("A <tool_call> is none.", "", [("f", "{}")])


@pytest.mark.parametrize("inside", [False, True])
def test_an_answer_cut_anywhere_shows_no_part_of_a_mark(inside: bool) -> None:
    text = ("" if inside else "<think>") + "\nHm.\n</think>\n\nI look.\n" + CALL
    for length in range(len(text) + 1):
        reasoning, content, _ = message(thinker(inside=inside, calls=True), text[:length], cut=True)
        assert "Hm.".startswith(reasoning)
        assert "I look.".startswith(content.rstrip())


def test_where_content_is_in_the_text() -> None:
    text = "<think>\nHm.\n</think>\n\nHello"
    assert content_places(thinker(), text) == list(range(text.index("Hello"), len(text)))
    assert content_places(thinker(), "Hello") == list(range(5))


def test_it_tells_whether_the_text_ends_within_it() -> None:
    parser = thinker()()
    told = []
    for char in "<think>a</think>b":
        parser.push(char)
        told.append(parser.reasons)
    assert told == [False] * 6 + [True] * 9 + [False] * 2


def test_long_texts_take_time_in_proportion() -> None:
    text = "a < b </ " * 5_000
    make = thinker(inside=True)
    assert "".join(delta.text for delta in deltas_of(make, text)) == text.rstrip()  # type: ignore[union-attr]
