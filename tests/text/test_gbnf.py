"""GBNF becomes the Lark that llguidance makes of it, in steps that grow with its length and not faster."""

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from sys import monitoring
from types import CodeType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import gbnf_to_lark as library

from jaxgen.text.gbnf import gbnf_to_lark
from jaxgen.text.grammar_compiler import as_lark
from tests.support.fuzzing import QUICK

NAMES = st.sampled_from(["root", "a", "b-c", "aB", "d"])
ITEMS = st.sampled_from(['"x"', "[a-z]", '"y"+', "(a | b-c)", "a?", "d*", "aB{1,3}", "(root)"]) | NAMES
RULES = st.tuples(NAMES, st.lists(st.lists(ITEMS, max_size=3).map(" ".join), min_size=1, max_size=3).map(" | ".join))
GRAMMARS = st.lists(RULES.map(" ::= ".join), max_size=6).map("\n".join)


def outcome(convert: Callable[[str], str], text: str) -> str:
    try:
        return re.sub(r"\s+", " ", convert(text)).strip()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@QUICK
@given(text=GRAMMARS.map('root ::= a b-c\na ::= "x"\nb-c ::= a [0-9]\n'.__add__) | GRAMMARS)
def test_it_is_what_llguidance_makes_of_it(text: str) -> None:
    assert outcome(gbnf_to_lark, text) == outcome(library.gbnf_to_lark, text)


def steps(text: str) -> int:
    """Calls of Python functions while a grammar is turned into Lark, or refused."""
    calls = 0

    def count(_code: CodeType, _offset: int) -> None:
        nonlocal calls
        calls += 1

    monitoring.use_tool_id(2, "steps")
    monitoring.register_callback(2, monitoring.events.PY_START, count)
    monitoring.set_events(2, monitoring.events.PY_START)
    try:
        with suppress(ValueError):
            as_lark(text)
    finally:
        monitoring.set_events(2, 0)
        monitoring.free_tool_id(2)
    return calls


def chain(many: int) -> str:
    return "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(many)) + f'r{many} ::= "a"\n'


@pytest.mark.parametrize(
    "grammar",
    [
        chain,
        lambda many: "\n".join(reversed(chain(many).splitlines())),
        lambda many: "\n" * many + "root ::= x",
        lambda many: "root ::= " + '"a" ' * many,
        lambda many: "root ::= " + "(" * many + '"a"' + ")" * many,
        lambda many: "#" * many + '\nroot ::= "a"',
        lambda many: "start\n" * many,
    ],
    ids=["chain", "chain from its end", "line breaks", "texts", "parentheses", "comment", "starts"],
)
def test_steps_grow_with_the_length(grammar: Callable[[int], str]) -> None:
    few, many = (steps(grammar(size)) for size in (60, 240))
    assert many < 6 * few + 1000


@QUICK
@given(text=GRAMMARS | st.text('root:=\n \t"()[]|#%a*{1,}\\', max_size=200), times=st.integers(1, 20))
def test_steps_are_bounded_by_the_length_of_any_text(text: str, times: int) -> None:
    assert steps(text * times) < 1000 + 60 * len(text) * times, sys.getrecursionlimit()
