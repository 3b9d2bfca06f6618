"""What a grammar lets come next: against brute force over the vocabulary, and its limits."""

import json
import random
import re
from contextlib import suppress
from itertools import count

import numpy as np
import pytest

from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.sampling_params import Grammar, SamplingParams
from jaxgen.text import grammar, grammar_compiler, grammar_state
from jaxgen.text.constraint import Constraint, Constraints, follow
from jaxgen.text.grammar_compiler import MAX_LENGTH, GrammarCompiler, as_lark
from jaxgen.text.grammar_state import BYTES_BUILT, Cost, advance
from jaxgen.text.tokenizer import Tokenizer
from tests.support import tiny_tokenizers

EOS = 1
PADDED = 437
"""The model's vocabulary: more than the tokenizer's, and no multiple of 32."""

WORDS = "start: /(ab|abc|déf ?)+x/"


@pytest.fixture(scope="module", params=["byte_level", "byte_fallback"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer(getattr(tiny_tokenizers, request.param)())


def start(tokenizer: Tokenizer, text: str, **params: object) -> Constraint:
    sampling = SamplingParams(grammar=Grammar(text, "here"), **params)  # type: ignore[arg-type]
    return Constraints(tokenizer, PADDED, frozenset({EOS})).start(sampling).result()


def allowed(state: Constraint) -> set[int]:
    bits = np.unpackbits(state.mask.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


@pytest.mark.parametrize("seed", range(6))
def test_the_mask_is_what_brute_force_finds(tokenizer: Tokenizer, seed: int) -> None:
    # Every text of up to 5 pieces: long enough for any one token after any text of 8 bytes.
    texts = [""]
    for _ in range(5):
        texts = sorted({text + piece for text in texts for piece in ("", "ab", "abc", "déf", "déf ")})
    whole = [(text + "x").encode() for text in texts if text]
    beginnings = {text[:length] for text in whole for length in range(1, len(text) + 1)}
    draw, state, so_far = random.Random(seed), start(tokenizer, WORDS), b""
    while len(so_far) < 8 and allowed(state) != {EOS}:
        expected = {
            token
            for token in range(PADDED)
            if tokenizer.text_bytes(token) and so_far + tokenizer.text_bytes(token) in beginnings
        }
        if len({tokenizer.text_bytes(token)[0] for token in expected}) > 1:
            assert allowed(state) == expected
        else:  # where only one text can follow, it may come as the tokenizer itself would write it
            assert allowed(state)
            assert allowed(state) <= expected
        token = draw.choice(sorted(allowed(state)))
        follow([(state, token)])
        so_far += tokenizer.text_bytes(token)
    assert state.error is None
    assert len(so_far) >= 8 or re.fullmatch(WORDS[8:-1], so_far.decode())


def test_special_tokens_and_padding_are_never_text() -> None:
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    state = start(tokenizer, "start: /(.|\\n)*/")
    ids = allowed(state)
    assert EOS in ids  # nothing at all is a text of this grammar
    assert 0 not in ids
    assert all(token < tokenizer.vocab_size for token in ids)


def test_the_end_waits_for_min_tokens_unless_nothing_else_may_come() -> None:
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    a, b = (tokenizer.encode(letter)[0] for letter in "ab")
    state = start(tokenizer, "start: /a{1,3}/", min_tokens=5, max_tokens=9)
    follow([(state, a)])
    assert EOS not in allowed(state)
    assert a in allowed(state)
    follow([(state, a)])
    follow([(state, a)])
    assert allowed(state) == {EOS}
    stopped = start(tokenizer, "start: /[ab]{1,9}/", min_tokens=1, max_tokens=9, stop_token_ids=(b,))
    assert b not in allowed(stopped)
    follow([(stopped, a)])
    assert {a, b, EOS} <= allowed(stopped)


def test_requests_with_one_grammar_do_not_share_their_place() -> None:
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    grammars = Constraints(tokenizer, PADDED, frozenset({EOS}))
    params = SamplingParams(grammar=Grammar("start: /ab/"))
    first, second = grammars.start(params).result(), grammars.start(params).result()
    a = tokenizer.encode("a")[0]
    follow([(first, a)])
    assert a not in allowed(first)
    assert a in allowed(second)


def test_a_token_that_is_not_allowed_is_an_error_of_that_request_only() -> None:
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    a, b = (tokenizer.encode(letter)[0] for letter in "ab")
    wrong, right = start(tokenizer, "start: /ab/"), start(tokenizer, "start: /ab/")
    follow([(wrong, b), (right, a)])
    assert wrong.error
    assert right.error is None
    assert b in allowed(right)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("start: foo", "foo"),
        ("start: /((a{100}){100}){100}/", "too many expressions"),
        ("start: /(a/", "regex"),
        ('start: %json {"type": "objectx"}', "objectx"),
        ("", "."),
        ("start: %json " + json.dumps({"enum": [f"{i:09}" for i in range(20_000)]}), "limit"),
        ('start: %json {"$ref": "file:///etc/hostname"}', "does not fetch"),
    ],
)
def test_a_grammar_that_cannot_be_used_is_refused_by_its_source(text: str, message: str) -> None:
    with pytest.raises(RequestRefusedError, match=f"(?s)^here: .*({message})") as refused:
        start(Tokenizer(tiny_tokenizers.byte_level()), text)
    assert refused.value.param == "here"
    assert len(str(refused.value)) < 400


ENDLESS = {
    "multiples": "start: %json "
    + json.dumps({"allOf": [{"type": "integer", "multipleOf": prime} for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23)]}),
    "expressions that all hold": "start: A\nA: " + "&".join(f"/(?s:.*)x{i}(?s:.*)/" for i in range(3000)),
}
"""llguidance would compile these for minutes, within all of its own limits."""


@pytest.mark.parametrize("name", ENDLESS)
def test_one_that_would_compile_for_minutes_is_ended_and_others_go_on(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "COMPILE_SECONDS", 0.5)
    with pytest.raises(RequestRefusedError, match=r"^here: it takes over 0.5 s to compile"):
        start(Tokenizer(tiny_tokenizers.byte_level()), ENDLESS[name])
    monkeypatch.undo()
    assert allowed(start(Tokenizer(tiny_tokenizers.byte_level()), "start: /a/"))


@pytest.mark.parametrize("text", ["\n" * 100_000 + "start: /a/", "\n" * 100_000 + 'root ::= "a"', " \t\n" * 30_000])
def test_line_breaks_are_read_once(text: str) -> None:
    """Which takes no time; the pattern of llguidance looks at all that follow, from each: that takes a minute."""
    with suppress(ValueError):
        assert "start" in as_lark(text)


def nested(rule: str) -> str:
    """Rules as deep as a grammar may be long."""
    depth = MAX_LENGTH // len(rule.format(9999, 9999, 9999) + "\n")
    rules = [rule.format(i, i + 1, i + 1) for i in range(depth)]
    return "\n".join(["start: r0", *rules, f'r{depth}: "x"'])


def test_rules_nested_as_deep_as_a_grammar_may_be_long_end_no_process() -> None:
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    assert allowed(start(tokenizer, nested('r{}: "a" r{} | "b" r{}')))
    with pytest.raises(RequestRefusedError, match="Too many items"):  # after the first token
        start(tokenizer, nested("r{}: r{} r{}"))


def test_a_tokenizer_that_cannot_be_followed_is_said_to_be_it() -> None:
    with pytest.raises(RequestRefusedError, match="tokenizer"):
        Constraints(Tokenizer(tiny_tokenizers.word_level()), 6, frozenset()).start(
            SamplingParams(grammar=Grammar("start: /a/"))
        ).result()


def test_ignoring_the_end_is_refused_with_a_grammar() -> None:
    with pytest.raises(ValueError, match=r"^ignore_eos"):
        SamplingParams(grammar=Grammar("start: /a/"), ignore_eos=True)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (r'start: "a\u00e9"', "aé"),
        (r"start: /a[\u00e8-\u00ea]/", "aé"),
        (r'start: A | /\u00ea/\nA: "a\u{e9}"', "aé"),
        (r'start: "\U0001F600"', "😀"),
        (r"start: /\ud83d\ude00/", "😀"),
        (r'start: "\\u00e9"', r"\u00e9"),
        (r"start: /\\u00e9/", r"\u00e9"),
        (r'start: %json {"const": "\u0007\u00e9"}', r'"\u0007é"'),
        (r'root ::= "a\u00e9"', "aé"),
        (r"root ::= [\u00e8-\u00ea]", "é"),
        (r"root ::= [^\u00ea] [\xe9]", "éé"),
        (r'root ::= "\U0001F600\u0041\u005c"', "😀A\\"),
    ],
)
def test_characters_may_be_escaped_in_texts_and_patterns(text: str, right: str) -> None:
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    state = start(tokenizer, text.replace(r"\n", "\n")).grammar
    assert state is not None
    matcher, ids = state.matcher, tokenizer.encode(right)
    assert matcher.try_consume_tokens(ids) == len(ids)
    assert matcher.is_accepting()


def test_what_the_lexer_does_not_read_is_told_how_to_write() -> None:
    with pytest.raises(RequestRefusedError, match="lexer error: write texts in double quotes"):
        start(Tokenizer(tiny_tokenizers.byte_level()), "start: 'a'")


@pytest.mark.parametrize("parallel", [2, 64])
def test_states_that_become_equal_have_one_mask(parallel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_state, "PARALLEL", parallel)
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    grammars, params = Constraints(tokenizer, PADDED, frozenset({EOS})), SamplingParams(grammar=Grammar("start: /a.*/"))
    states = [grammars.start(params).result().grammar for _ in range(4)]
    a, b, c = (tokenizer.encode(letter)[0] for letter in "abc")
    first, second, third, wrong = [state for state in states if state is not None]
    advance([(first, a), (second, a), (third, a), (wrong, b)])
    assert first.mask is second.mask is third.mask or parallel == 2
    assert wrong.error
    assert not any(state.error for state in (first, second, third))
    advance([(first, b), (second, c), (third, b)])
    assert first.place == third.place != second.place
    assert (first.mask == third.mask).all()
    advance([(first, c), (second, b), (third, b)])
    alone = grammars.start(params).result().grammar
    assert alone is not None
    for token in (a, b, b):
        advance([(alone, token)])
    assert alone.place == third.place
    assert (alone.mask == third.mask).all()


def test_the_cost_of_a_grammar_rises_at_once_and_falls_slowly() -> None:
    cost = Cost(0.001, 0)
    cost.note(0.02)
    assert (cost.seconds, cost.num_bytes) == (0.02, 0.02 * BYTES_BUILT)
    cost.note(0.0)
    assert cost.seconds == pytest.approx(0.015)
    assert cost.num_bytes == 0.02 * BYTES_BUILT


def test_a_grammar_whose_tokens_take_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what a clock says that each look at it passes some time."""
    tokenizer, now = Tokenizer(tiny_tokenizers.byte_level()), count()
    compiler = GrammarCompiler(tokenizer.to_json(), PADDED, [EOS])
    lark, seconds, num_bytes = compiler.check("start: /[ab]+/")
    assert (lark, seconds < grammar_compiler.MOST_TOKEN_SECONDS, num_bytes >= 0) == ("start: /[ab]+/", True, True)
    monkeypatch.setattr(grammar_compiler, "thread_time", lambda: next(now) * grammar_compiler.MOST_TOKEN_SECONDS)
    with pytest.raises(RequestRefusedError, match=r"each token takes 1[0-9] ms with it, the limit is 10 ms"):
        compiler.check("start: /[ab]+/")


def test_cached_grammars_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    made, texts = Constraints(tokenizer, PADDED, frozenset({EOS})), ["start: /a/", "start: /b/", "start: /c/"]
    states = [made.start(SamplingParams(grammar=Grammar(text))).result().grammar for text in texts[:2]]
    cached = made._grammars._cached
    assert list(cached) == texts[:2]
    assert states[0] is not None
    states[0].cost.note(2.0 * grammar.MAX_CACHED_BYTES / BYTES_BUILT)
    made.start(SamplingParams(grammar=Grammar(texts[2]))).result()
    assert list(cached) == texts[1:]
