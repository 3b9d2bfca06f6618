"""A text is never said to have more tokens than it has, and is bounded where the tokenizer's parts allow it."""

import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from jaxgen.text.tokenizer import Tokenizer
from tests.support import tiny_tokenizers
from tests.support.fuzzing import QUICK

FOUR = unicodedata.normalize("NFD", "ᾂ")
WHITE = [chr(i) for i in range(0x110000) if chr(i).isspace() and i not in range(0x1C, 0x20)]


def of_characters(normalizer: normalizers.Normalizer | None = None, **options: object) -> Backend:
    """A vocabulary of single characters, with a token for each unknown one."""
    characters = ["?", "ᾂ", "é", "각", "a", " ", "▁"]
    options = {"unk_token": "?", **options}
    made = Backend(models.BPE({char: i for i, char in enumerate(characters)}, [], **options))
    if normalizer is not None:
        made.normalizer = normalizer
    made.decoder = decoders.Fuse()
    return made


def with_added(backend: Backend, *names: str, **options: bool) -> Backend:
    backend.add_tokens([AddedToken(name, **options) for name in names])
    return backend


def split(backend: Backend, pre_tokenizer: pre_tokenizers.PreTokenizer) -> Backend:
    backend.pre_tokenizer = pre_tokenizer
    return backend


def unigram(*, fallback: bool) -> Backend:
    pieces = [("<unk>", 0.0), ("a", -1.0), ("aa", -1.5), *((f"<0x{byte:02X}>", -9.0) for byte in range(256))]
    made = Backend(models.Unigram(pieces, unk_id=0, byte_fallback=fallback))
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return made


BOUNDED: dict[str, Callable[[], Backend]] = {
    "byte level": tiny_tokenizers.byte_level,
    "byte fallback": tiny_tokenizers.byte_fallback,
    "metaspace": tiny_tokenizers.metaspace,
    "characters": of_characters,
    "NFC": lambda: of_characters(normalizers.NFC()),
    "NFKC, lower": lambda: of_characters(normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])),
    "NFD": lambda: of_characters(normalizers.NFD()),
    "unigram with bytes": lambda: unigram(fallback=True),
    "added": lambda: with_added(of_characters(normalizers.NFC()), "a long name for one token", "ᾂᾂᾂ"),
    "added, greedy": lambda: with_added(tiny_tokenizers.byte_level(), "<mask>", lstrip=True, rstrip=True),
    "added, normalized": lambda: with_added(of_characters(normalizers.NFC()), "ᾂ mask", lstrip=True, normalized=True),
    "added, decomposed": lambda: with_added(of_characters(normalizers.NFD()), "ᾂ", normalized=True),
    "split": lambda: split(of_characters(), pre_tokenizers.Split("a", "isolated")),
}

UNBOUNDED: dict[str, tuple[Callable[[], Backend], str]] = {
    "strip": (lambda: of_characters(normalizers.Strip()), " " * 1000),
    "accents": (lambda: of_characters(normalizers.StripAccents()), "a" + "\u0301" * 1000),
    "replace": (lambda: of_characters(normalizers.Replace("aaaa", "a")), "a" * 1000),
    "space of letters": (lambda: of_characters(normalizers.Replace("b", " ")), "b" * 1000),
    "white space": (lambda: split(of_characters(), pre_tokenizers.Whitespace()), " " * 1000),
    "removed": (lambda: split(of_characters(), pre_tokenizers.Split("a", "removed")), "a" * 1000),
    "fused": (lambda: of_characters(fuse_unk=True), "x" * 1000),
    "dropped": (lambda: of_characters(unk_token=None), "x" * 1000),
    "unigram": (lambda: unigram(fallback=False), "x" * 1000),
    "words": (tiny_tokenizers.word_level, "x" * 1000),
}

SHORT = [*"aé▁ᾂ각 \t\n\u2003\u3000xyz", FOUR, "e\u0301", "ᄀ\u1161\u11a8", "\u0301", "ﷺ", "İ"]
NAMES = ["<mask>", "<s>", "a long name for one token", "ᾂᾂᾂ", FOUR + " mask", "the hello", "😀", "  " * 20]
PIECES = st.sampled_from(SHORT + NAMES)


@pytest.mark.parametrize("name", BOUNDED)
def test_no_text_is_said_to_have_more_tokens_than_it_has(name: str) -> None:
    tokenizer = Tokenizer(BOUNDED[name]())

    @QUICK
    @given(st.lists(PIECES | st.characters(exclude_categories=["Cs"]), max_size=30).map("".join))
    @example(FOUR * 50)
    @example("ᄀ\u1161\u11a8" * 50)
    @example(" " * 500 + "<mask>" + "\u3000" * 500)
    @example("\u2003" * 500 + "ᾂ mask")
    @example("a long name for one token" * 20)
    @example("ᾂᾂᾂ" * 20)
    @example("x" * 100)
    def check(text: str) -> None:
        assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text, special=False))

    check()


@pytest.mark.parametrize("name", BOUNDED)
def test_a_long_text_is_known_to_have_many_tokens(name: str) -> None:
    tokenizer = Tokenizer(BOUNDED[name]())
    assert tokenizer.least_tokens("a" * 100_000) >= 1000
    assert tokenizer.least_tokens("") == 0


@pytest.mark.parametrize("name", UNBOUNDED)
def test_what_may_take_any_number_of_characters_has_no_bound(name: str) -> None:
    make, text = UNBOUNDED[name]
    tokenizer = Tokenizer(make())
    assert tokenizer.least_tokens(text) == 0
    assert len(tokenizer.encode(text)) < 1000 or name == "space of letters"


def test_unicode_is_as_the_bound_takes_it() -> None:
    """No character decomposes into more than four, and what is not white space keeps something that is not."""
    for char in map(chr, range(0x110000)):
        full = unicodedata.normalize("NFKD", char)
        if full != char:
            canonical = unicodedata.normalize("NFD", char)
            assert len(canonical) <= 4
            assert all(one in WHITE for one in canonical) == all(one in WHITE for one in full) == (char in WHITE)
