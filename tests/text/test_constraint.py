"""What grammar, allowed_token_ids and bad_words together let come next, by the definition: each token is tried."""

import random

import numpy as np
import pytest

from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.sampling_params import Grammar, SamplingParams
from jaxgen.text.constraint import Constraint, Constraints, follow
from jaxgen.text.tokenizer import Tokenizer
from tests.support import tiny_tokenizers

EOS = 1
PADDED = 437
"""The model's vocabulary: more than the tokenizer's, and no multiple of 32."""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(tiny_tokenizers.byte_level())


def start(tokenizer: Tokenizer, **params: object) -> Constraint:
    sampling = SamplingParams(max_tokens=100, **params)  # type: ignore[arg-type]
    return Constraints(tokenizer, PADDED, frozenset({EOS})).start(sampling).result()


def allowed(constraint: Constraint) -> set[int]:
    bits = np.unpackbits(constraint.mask.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def spellings(tokenizer: Tokenizer, words: list[str]) -> list[list[int]]:
    """Return the words' tokens, each as it is written at the beginning of a text and after a space."""
    return [tokenizer.encode(text, special=False) for word in words for text in (word, f" {word}")]


@pytest.mark.parametrize("seed", range(5))
def test_no_token_completes_a_bad_word(tokenizer: Tokenizer, seed: int) -> None:
    draw = random.Random(seed)
    words = ["x", "the", "fox", "aab", "abab", "lazy dog", "😀", "ba"]
    letters = [tokenizer.encode(letter)[0] for letter in "abthefox"]
    permitted = sorted({*range(3, 400, 2), *letters})
    ids = tuple(permitted) if seed % 2 else None
    constraint, so_far, banned = start(tokenizer, bad_words=tuple(words), allowed_token_ids=ids), list[int](), 0
    spelled = spellings(tokenizer, words)
    for _ in range(60):
        fine = set(range(PADDED)) - {one[-1] for one in spelled if [*so_far, one[-1]][-len(one) :] == one}
        banned += PADDED - len(fine) > 2
        assert allowed(constraint) == (fine & set(permitted) if ids else fine)
        so_far.append(draw.choice(sorted(allowed(constraint) & set(letters))))
        follow([(constraint, so_far[-1])])
    assert constraint.error is None
    assert banned, "else only single tokens were"


def test_a_constraint_waits_for_tokens_only_where_they_decide(tokenizer: Tokenizer) -> None:
    (x,) = tokenizer.encode("x")
    assert len(tokenizer.encode(" x")) == 2
    assert not start(tokenizer, allowed_token_ids=(x, 5)).changes
    assert not start(tokenizer, bad_words=("the",), allowed_token_ids=(5,)).changes or len(tokenizer.encode("the")) > 1
    assert start(tokenizer, bad_words=("x",)).changes
    assert start(tokenizer, allowed_token_ids=(x, EOS), min_tokens=3).changes
    assert start(tokenizer, grammar=Grammar("start: /a/")).changes


def test_the_end_waits_for_min_tokens_unless_nothing_else_may_come(tokenizer: Tokenizer) -> None:
    (x,) = tokenizer.encode("x")
    held = start(tokenizer, allowed_token_ids=(x, EOS, 7), stop_token_ids=(7,), min_tokens=2)
    seen = [allowed(held)]
    for _ in range(2):
        follow([(held, x)])
        seen.append(allowed(held))
    assert seen == [{x}, {x}, {x, EOS, 7}]
    assert allowed(start(tokenizer, allowed_token_ids=(EOS,), min_tokens=2)) == {EOS}
    assert allowed(start(tokenizer, allowed_token_ids=(x, EOS), min_tokens=2, ignore_eos=True)) == {x, EOS}


def test_a_grammar_is_followed_within_what_the_others_allow(tokenizer: Tokenizer) -> None:
    a, b, c = (tokenizer.encode(letter)[0] for letter in "abc")
    constraint = start(
        tokenizer, grammar=Grammar("start: /[abc]{1,4}/"), allowed_token_ids=(a, b, EOS), bad_words=("aa",)
    )
    assert allowed(constraint) == {a, b}
    follow([(constraint, a)])
    assert allowed(constraint) == {b, EOS}
    follow([(constraint, b)])
    assert allowed(constraint) == {a, b, EOS}
    assert c not in allowed(constraint)


def test_a_request_that_may_go_nowhere_is_refused_or_ended_by_the_field(tokenizer: Tokenizer) -> None:
    a, b = (tokenizer.encode(letter)[0] for letter in "ab")
    for params, field, message in (
        ({"grammar": Grammar("start: /a/"), "allowed_token_ids": (a,)}, "allowed_token_ids", "end-of-sequence token"),
        ({"grammar": Grammar("start: /a/"), "allowed_token_ids": (b, EOS)}, "allowed_token_ids", "no token is left"),
        ({"grammar": Grammar("start: /a/"), "bad_words": ("a",)}, "bad_words", "no token is left"),
        ({"allowed_token_ids": (5, PADDED)}, "allowed_token_ids", f"{PADDED} is not a valid token id"),
    ):
        with pytest.raises(RequestRefusedError, match=message) as refused:
            start(tokenizer, **params)
        assert refused.value.param == field
    constraint = start(tokenizer, grammar=Grammar("start: /abx/"), bad_words=("ab",))
    follow([(constraint, a)])
    assert constraint.error
    assert constraint.source == "bad_words"


def test_words_are_spelled_with_and_without_the_space_before_them() -> None:
    tokenizer = Tokenizer(tiny_tokenizers.byte_fallback())
    for given in ("hello", " hello"):
        constraint = start(tokenizer, bad_words=(given,))
        tokens = tokenizer.encode("hello", special=False)
        for token in tokens[:-1]:
            follow([(constraint, token)])
        assert tokens[-1] not in allowed(constraint)
    newline = tokenizer.encode("\n", special=False)
    assert newline[-1] not in allowed(start(tokenizer, bad_words=("\n",))) or len(newline) > 1


def test_what_the_first_grammar_waits_for_can_be_made_before(tokenizer: Tokenizer) -> None:
    made = Constraints(tokenizer, PADDED, frozenset({EOS}))
    made.prepare().result(60)
    compiler = made._grammars._compiler
    assert compiler is not None
    made.start(SamplingParams(max_tokens=9, grammar=Grammar("start: /a/"))).result(60)
    assert made._grammars._compiler is compiler
