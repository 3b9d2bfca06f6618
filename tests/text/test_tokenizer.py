"""Tokens to text and back, for every kind of tokenizer that the supported families have."""

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, normalizers

from jaxgen.core.errors import ConfigError, RequestRefusedError
from jaxgen.core.request import FinishReason
from jaxgen.text import tokenizer as module
from jaxgen.text.completion import CompletionText
from jaxgen.text.stop_strings import StopStrings
from jaxgen.text.tokenizer import Tokenizer
from tests.support import tiny_tokenizers

KINDS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "byte_level": tiny_tokenizers.byte_level,
    "byte_fallback": tiny_tokenizers.byte_fallback,
    "metaspace": tiny_tokenizers.metaspace,
    "word_level": tiny_tokenizers.word_level,
}
BACKENDS = {name: make() for name, make in KINDS.items()}
TOKENIZERS = {name: Tokenizer(backend) for name, backend in BACKENDS.items()}
each_kind = pytest.mark.parametrize("kind", list(KINDS))

REPLACEMENT = "\ufffd"


def token_id(kind: str, name: str) -> int:
    token = BACKENDS[kind].token_to_id(name)
    assert token is not None
    return token


def byte_tokens(text: str) -> list[int]:
    return [token_id("byte_fallback", f"<0x{byte:02X}>") for byte in text.encode()]


def is_byte_token(kind: str, token: int) -> bool:
    name = BACKENDS[kind].id_to_token(token)
    return kind in ("byte_fallback", "metaspace") and name is not None and name.startswith("<0x")


def any_tokens(kind: str) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, TOKENIZERS[kind].vocab_size - 1), max_size=40)


def well_formed_tokens(kind: str) -> st.SearchStrategy[list[int]]:
    """Any tokens, but byte-fallback tokens only as whole characters."""
    others = [i for i in range(TOKENIZERS[kind].vocab_size) if not is_byte_token(kind, i)]
    parts = st.sampled_from(others).map(lambda token: [token])
    if kind in ("byte_fallback", "metaspace"):
        parts |= st.text(st.characters(codec="utf-8"), min_size=1, max_size=3).map(byte_tokens)
    return st.lists(parts, max_size=30).map(lambda lists: [token for part in lists for token in part])


def full_decode(kind: str, tokens: list[int]) -> str:
    return BACKENDS[kind].decode(tokens, skip_special_tokens=True)


def streamed(text: CompletionText, tokens: list[int]) -> str:
    return "".join([text.feed(token) for token in tokens]) + text.feed(None, FinishReason.LENGTH)


@each_kind
@settings(deadline=None)
@given(data=st.data())
def test_stream_joins_to_the_full_decode(kind: str, data: st.DataObject) -> None:
    tokens = data.draw(well_formed_tokens(kind))
    assert streamed(TOKENIZERS[kind].completion_text(), tokens) == full_decode(kind, tokens)
    assert TOKENIZERS[kind].decode(tokens) == full_decode(kind, tokens)


@each_kind
@settings(deadline=None)
@given(data=st.data())
def test_bytes_that_are_no_text_spoil_no_character(kind: str, data: st.DataObject) -> None:
    tokens = data.draw(any_tokens(kind))
    text, reference = streamed(TOKENIZERS[kind].completion_text(), tokens), full_decode(kind, tokens)
    assert text == TOKENIZERS[kind].decode(tokens)
    if REPLACEMENT not in reference or kind == "byte_level":
        assert text == reference
    kept = iter(text)
    assert all(char in kept for char in reference if char != REPLACEMENT), "a character of the reference is missing"


@each_kind
@settings(deadline=None)
@given(data=st.data())
def test_a_completion_continues_its_prompt(kind: str, data: st.DataObject) -> None:
    tokens = data.draw(well_formed_tokens(kind))
    cut = data.draw(st.integers(0, len(tokens)))
    before = TOKENIZERS[kind].completion_text()
    prompt_text = "".join([before.feed(token) for token in tokens[:cut]])
    after = TOKENIZERS[kind].completion_text(prompt=tuple(tokens[:cut]))
    assert prompt_text + streamed(after, tokens[cut:]) == full_decode(kind, tokens)


def test_a_character_comes_out_whole_and_at_once() -> None:
    for kind in ("byte_level", "byte_fallback"):
        tokenizer = TOKENIZERS[kind]
        tokens = [i for i in range(tokenizer.vocab_size) if len(tokenizer.text_bytes(i)) == 1]
        token_of = {tokenizer.text_bytes(i): i for i in reversed(tokens)}
        text = tokenizer.completion_text()
        emoji = [token_of[bytes([byte])] for byte in "😀".encode()]
        assert [text.feed(token) for token in emoji] == ["", "", "", "😀"]
        assert text.feed(emoji[0]) == ""
        assert text.feed(None, FinishReason.LENGTH) == REPLACEMENT


def test_leading_space_is_dropped_only_at_the_start_of_a_text() -> None:
    tokenizer = TOKENIZERS["byte_fallback"]
    the = token_id("byte_fallback", "▁the")
    bos = token_id("byte_fallback", "<s>")
    assert streamed(tokenizer.completion_text(), [the, the]) == "the the"
    assert streamed(tokenizer.completion_text(prompt=(bos,)), [the]) == "the"
    assert streamed(tokenizer.completion_text(prompt=(bos, the)), [the]) == " the"
    assert streamed(tokenizer.completion_text(prompt=(bos, the)), [bos, the]) == " the"


def test_a_long_text_needs_no_more_decoding_than_its_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer(tiny_tokenizers.byte_fallback())
    decode, calls = tokenizer._decode_exactly, []

    def counting(tokens: list[int]) -> str:
        calls.append(len(tokens))
        return decode(tokens)

    monkeypatch.setattr(tokenizer, "_decode_exactly", counting)
    tokens = [i % tokenizer.vocab_size for i in range(20_000)]
    assert streamed(tokenizer.completion_text(), tokens) == tokenizer.decode(tokens)
    assert len(calls) <= 3 * tokenizer.vocab_size
    assert max(calls) == 2


STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def first_match(text: str, stops: list[str]) -> int | None:
    """Where a reader who checks after every character cuts."""
    for end in range(1, len(text) + 1):
        complete = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if complete:
            return end - max(complete)
    return None


@settings(deadline=None)
@given(text=st.text("abc", max_size=40), stops=STOPS, data=st.data())
def test_stop_strings_cut_where_the_first_is_complete(text: str, stops: list[str], data: st.DataObject) -> None:
    matcher, seen, passed = StopStrings(stops), 0, ""
    while seen < len(text) and not matcher.stopped:
        size = data.draw(st.integers(1, 6))
        passed += matcher.push(text[seen : seen + size])
        seen = min(seen + size, len(text))
        if not matcher.stopped:
            held = text[len(passed) : seen]
            assert passed + held == text[:seen]
            assert not held or any(stop.startswith(held) and stop != held for stop in stops), "held without need"
            longest = max((k for stop in stops for k in range(len(stop)) if text[:seen].endswith(stop[:k])), default=0)
            assert len(held) == longest
    cut = first_match(text, stops)
    assert matcher.stopped == (cut is not None)
    assert passed + matcher.flush() == (text if cut is None else text[:cut])


def test_stop_string_may_span_tokens_and_characters() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    tokens = tokenizer.encode("go on 😀END of it")
    assert len(tokens) > len("go on")
    text = tokenizer.completion_text(stop=("😀EN", "never"))
    assert streamed(text, tokens) == "go on "
    assert text.finish_reason is FinishReason.STOP
    assert text.feed(None, FinishReason.LENGTH) == ""


def test_text_held_for_a_stop_string_comes_out_at_the_end() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    text = tokenizer.completion_text(stop=("END.",))
    tokens = tokenizer.encode("the END")
    pieces = [text.feed(token) for token in tokens]
    assert "".join(pieces) == "the "
    assert text.feed(None, FinishReason.LENGTH) == "END"
    assert text.finish_reason is FinishReason.LENGTH


def test_flush_can_complete_a_stop_string() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    text = tokenizer.completion_text(stop=(REPLACEMENT,))
    broken = next(i for i in range(tokenizer.vocab_size) if tokenizer.text_bytes(i) == b"\xf0")
    assert text.feed(broken) + text.feed(None, FinishReason.LENGTH) == ""
    assert text.finish_reason is FinishReason.STOP


def test_stop_strings_wait_for_min_tokens() -> None:
    tokenizer = TOKENIZERS["word_level"]
    tokens = tokenizer.encode("one two one two")
    assert streamed(tokenizer.completion_text(stop=("two",)), tokens) == "one "
    assert streamed(tokenizer.completion_text(stop=("two",), min_tokens=2), tokens) == "one two one "
    assert streamed(tokenizer.completion_text(stop=("two",), min_tokens=4), tokens) == "one two one two"


def test_offset_counts_the_characters_before_the_next_token() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    text = tokenizer.completion_text(stop=("zz",))
    offsets = []
    tokens = tokenizer.encode("é😀zebra")
    for token in tokens:
        offsets.append(text.offset)
        text.feed(token)
    before = [len(tokenizer.decode(tokens[:i]).rstrip(REPLACEMENT)) for i in range(len(tokens))]
    assert offsets == before


@each_kind
def test_shown_special_tokens_come_out_as_their_names(kind: str) -> None:
    special, other = (token_id(kind, name) for name in (tiny_tokenizers.BOS, tiny_tokenizers.EOS))
    assert TOKENIZERS[kind].added_token(tiny_tokenizers.BOS) == special
    assert TOKENIZERS[kind].added_token("<none>") is None
    text = TOKENIZERS[kind].completion_text(
        prompt=[special], shown={special: TOKENIZERS[kind].token_text(special)}, stop=["s>"]
    )
    assert [text.feed(token) for token in (other, special)] == ["", "<"]
    assert text.finish_reason is FinishReason.STOP


def test_token_text_names_what_is_no_text() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    assert tokenizer.token_text(token_id("byte_level", "</s>")) == "</s>"
    assert tokenizer.token_text(tokenizer.encode(" the")[0]) == " the"
    broken = next(i for i in range(tokenizer.vocab_size) if tokenizer.text_bytes(i) == b"\xf0")
    assert tokenizer.token_text(broken) == "bytes:\\xf0"
    assert tokenizer.token_text(10_000) == ""
    assert tokenizer.decode([10_000]) == ""
    spaced = TOKENIZERS["byte_fallback"]
    assert spaced.token_text(token_id("byte_fallback", "▁the")) == " the"


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "metaspace"])
def test_directory_encodes_as_transformers_does(kind: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    directory = tiny_tokenizers.save(KINDS[kind](), tmp_path)
    reference = AutoTokenizer.from_pretrained(directory)
    tokenizer = Tokenizer.from_directory(directory)
    for text in ("", "hello the a", "  two  spaces", "naïve 😀 東京\n\n", "</s> within"):
        assert tokenizer.encode(text) == reference(text).input_ids
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens) == reference.decode(tokens, skip_special_tokens=True)


def test_opt_files_get_their_bos(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(tiny_tokenizers.save_gpt2_files(tmp_path))
    tokens = tokenizer.encode("The quick fox")
    assert tokens[0] == 1, "</s> begins every text of OPT"
    assert 1 not in tokens[1:]
    assert tokenizer.decode(tokens) == "The quick fox"


def test_truncation_and_padding_of_the_file_are_switched_off(tmp_path: Path) -> None:
    backend = tiny_tokenizers.byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    tokenizer = Tokenizer.from_directory(tiny_tokenizers.save(backend, tmp_path))
    assert tokenizer.decode(tokenizer.encode("The quick brown fox jumps")) == "The quick brown fox jumps"


def test_bad_directories_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent does not exist"):
        Tokenizer.from_directory(tmp_path / "absent")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ConfigError, match=r"empty has no tokenizer: add its tokenizer\.json"):
        Tokenizer.from_directory(empty)
    corrupt = tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path / "corrupt")
    (corrupt / "tokenizer.json").write_text('{"model":')
    with pytest.raises(ConfigError, match=r"cannot load a tokenizer from .*corrupt"):
        Tokenizer.from_directory(corrupt)
    pieces = tiny_tokenizers.word_level()
    pieces.decoder = decoders.WordPiece()
    with pytest.raises(ConfigError, match=r"cannot use the tokenizer in .*pieces: .*WordPiece"):
        Tokenizer.from_directory(tiny_tokenizers.save(pieces, tmp_path / "pieces"))


def test_a_normalizer_that_makes_much_of_little_is_refused() -> None:
    """Two replacements by 100 characters make 10,000 of one; those of real tokenizers make one or two."""
    backend = tiny_tokenizers.byte_level()
    backend.normalizer = normalizers.Sequence(
        [normalizers.Replace("e", "f" * 100), normalizers.Replace("f", "g" * 100)]
    )
    with pytest.raises(ConfigError, match="normalizer makes 10000 characters of one, the limit is 1024"):
        Tokenizer(backend)


def test_a_text_on_which_the_library_fails_is_refused() -> None:
    """Some patterns have no end for it: it then raises what is no Exception."""

    class PanicException(BaseException):
        pass

    class Panics:
        def encode_batch_fast(self, *_: object, **__: object) -> None:
            raise PanicException("called `Result::unwrap()`")

    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    tokenizer._backend = Panics()  # type: ignore[assignment]
    with pytest.raises(RequestRefusedError, match="tokenizer fails on this text"):
        tokenizer.encode("xxxxxxxxxx")


def test_memory_is_given_back_after_a_long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(module, "return_free_memory", lambda: given.append(0))
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    tokenizer.encode("a" * 1000)
    assert not given
    tokenizer.encode("a" * 2**18)
    assert given == [0]


def test_code_in_the_directory_never_runs(tmp_path: Path) -> None:
    directory = tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path / "model")
    marker = tmp_path / "ran"
    (directory / "custom.py").write_text(
        f"from pathlib import Path\nPath({str(marker)!r}).touch()\n"
        "from transformers import PreTrainedTokenizerFast as Custom\n"
    )
    config = json.loads((directory / "tokenizer_config.json").read_text())
    config["auto_map"] = {"AutoTokenizer": ["custom.Custom", "custom.Custom"]}
    config["tokenizer_class"] = "Custom"
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    with suppress(ConfigError):
        Tokenizer.from_directory(directory)
    assert not marker.exists()


def test_loading_prints_nothing(tmp_path: Path) -> None:
    directory = tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path)
    program = f"from jaxgen.text.tokenizer import Tokenizer; Tokenizer.from_directory({str(directory)!r}).encode('a b')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_threads_share_a_tokenizer() -> None:
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    texts = [f"The quick brown fox number {i} 😀 " * 50 for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        encoded = list(pool.map(tokenizer.encode, texts))
        assert list(pool.map(tokenizer.decode, encoded)) == texts
