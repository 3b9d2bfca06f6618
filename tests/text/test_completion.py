"""The end of a completion's text: stop strings, the tokens that end it, and the text that was held back."""

import pytest

from jaxgen.core.request import FinishReason
from jaxgen.text.completion import CompletionText
from jaxgen.text.tokenizer import Tokenizer
from tests.support import tiny_tokenizers

TOKENIZER = Tokenizer(tiny_tokenizers.byte_level())
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def tokens_of(text: str) -> list[int]:
    """Tokens of one byte each."""
    single = {TOKENIZER.text_bytes(i): i for i in range(TOKENIZER.vocab_size) if len(TOKENIZER.text_bytes(i)) == 1}
    return [single[bytes([byte])] for byte in text.encode()]


def completion(*stop: str, min_tokens: int = 0) -> CompletionText:
    return TOKENIZER.completion_text(stop=stop, min_tokens=min_tokens)


@pytest.mark.parametrize("stop", [(), ("xx",)])
def test_the_token_that_ends_a_completion_is_not_part_of_its_text(stop: tuple[str, ...]) -> None:
    (a, b), text = tokens_of("ab"), completion(*stop)
    assert (text.feed(a), text.finish_reason) == ("a", None)
    assert (text.feed(b, STOP), text.finish_reason) == ("", STOP)


def test_the_last_token_brings_the_text_held_back_before_it() -> None:
    x, text = tokens_of("x")[0], completion("xxx")
    assert [text.feed(x), text.feed(x, LENGTH)] == ["", "xx"]
    assert text.finish_reason is LENGTH


def test_an_end_without_a_token_brings_the_text_held_back() -> None:
    x, text = tokens_of("x")[0], completion("xx")
    assert [text.feed(x), text.feed(None, FinishReason.ABORT)] == ["", "x"]
    assert text.finish_reason is FinishReason.ABORT


def test_a_stop_string_is_the_reason_even_with_the_last_token() -> None:
    (x, y), text = tokens_of("xy"), completion("y")
    assert [text.feed(x), text.feed(y, LENGTH)] == ["x", ""]
    assert text.finish_reason is STOP


def test_a_stop_string_is_part_of_the_text_where_it_is_included() -> None:
    tokens = tokens_of("axyb")
    text = TOKENIZER.completion_text(stop=("xy", "axyz"), include_stop=True)
    assert "".join(map(text.feed, tokens)) == "axy"
    assert text.finish_reason is STOP


def test_a_stop_token_is_part_of_the_text_where_it_is_included() -> None:
    (a, b), eos = tokens_of("ab"), 1
    for token, skip, expected in ((b, True, "ab"), (eos, True, "a"), (eos, False, "a</s>")):
        text = TOKENIZER.completion_text(include_stop=True, skip_special=skip)
        assert text.feed(a) + text.feed(token, STOP) == expected
        plain = TOKENIZER.completion_text(skip_special=skip)
        assert plain.feed(a) + plain.feed(token, STOP) == "a"


def test_special_tokens_are_shown_where_they_are_not_skipped() -> None:
    (a, b), bos = tokens_of("ab"), 0
    shown, hidden = TOKENIZER.completion_text(skip_special=False), TOKENIZER.completion_text()
    assert [shown.feed(token) for token in (a, bos, b)] == ["a", "<s>", "b"]
    assert [hidden.feed(token) for token in (a, bos, b)] == ["a", "", "b"]


def test_nothing_follows_a_stop_string() -> None:
    (x, y), text = tokens_of("xy"), completion("y")
    assert [text.feed(token) for token in (x, y, x)] == ["x", "", ""]
    assert text.feed(None, LENGTH) == ""
    assert text.finish_reason is STOP


def test_the_end_is_searched_before_min_tokens_too() -> None:
    """A character that stays unfinished becomes text only at the end."""
    broken = tokens_of("é")[0]
    text = completion("\ufffd", min_tokens=5)
    assert text.feed(broken, LENGTH) == ""
    assert text.finish_reason is STOP
