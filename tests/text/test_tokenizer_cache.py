"""A kept tokenizer is the one transformers made, found without transformers, and never that of other files."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers

from jaxgen.core.errors import ConfigError
from jaxgen.text.tokenizer import Tokenizer
from jaxgen.text.tokenizer_cache import load_tokenizer, tokenizer_problem
from tests.support import tiny_tokenizers
from tests.support.damaged_files import DAMAGES
from tests.support.paths import ROOT

KINDS = {
    "byte_level": tiny_tokenizers.byte_level,
    "byte_fallback": tiny_tokenizers.byte_fallback,
    "metaspace": tiny_tokenizers.metaspace,
    "word_level": tiny_tokenizers.word_level,
}
TEXT = "hello the naïve café 😀 <tool> one two </s>"
WITHOUT_TRANSFORMERS = """
import sys
sys.modules["transformers"] = None
from pathlib import Path
from jaxgen.text.tokenizer_cache import load_tokenizer, tokenizer_problem
print(load_tokenizer(Path(sys.argv[1]), Path(sys.argv[2])).encode(sys.argv[3]))
"""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_kept_tokenizer_is_the_same(kind: str, tmp_path: Path, cache: Path) -> None:
    directory = tiny_tokenizers.save(KINDS[kind](), tmp_path / "model")
    made = load_tokenizer(directory, cache)
    kept = load_tokenizer(directory, cache)
    assert kept is not made
    assert kept.to_json() == made.to_json() == Tokenizer.from_directory(directory).to_json()
    tokens = made.encode(TEXT)
    assert kept.encode(TEXT) == tokens
    assert [kept.token_text(token) for token in tokens] == [made.token_text(token) for token in tokens]
    assert kept.decode(tokens) == made.decode(tokens)


def test_files_without_tokenizer_json_are_kept_too(tmp_path: Path, cache: Path) -> None:
    directory = tiny_tokenizers.save_gpt2_files(tmp_path / "model")
    assert load_tokenizer(directory, cache).encode(TEXT) == load_tokenizer(directory, cache).encode(TEXT)


def test_the_second_start_does_without_transformers(tmp_path: Path, cache: Path) -> None:
    directory = tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path / "model")
    tokens = load_tokenizer(directory, cache).encode(TEXT)
    command = [sys.executable, "-c", WITHOUT_TRANSFORMERS, str(directory), str(cache), TEXT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == str(tokens), done.stderr


def test_other_files_are_another_tokenizer(tmp_path: Path, cache: Path) -> None:
    directory = tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path / "model")
    first = load_tokenizer(directory, cache).encode(TEXT)
    tiny_tokenizers.save(tiny_tokenizers.byte_fallback(), directory)
    assert load_tokenizer(directory, cache).encode(TEXT) != first


def test_files_that_change_while_they_are_read_are_not_kept(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path / "model")
    read = Tokenizer.from_directory

    def replaced(directory: Path) -> Tokenizer:
        tiny_tokenizers.save(tiny_tokenizers.byte_fallback(), directory)
        return read(directory)

    monkeypatch.setattr(Tokenizer, "from_directory", replaced)
    with pytest.raises(ConfigError, match=r"the text files in .*model changed while being read: start again"):
        load_tokenizer(directory, cache)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_copy_is_made_anew(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    directory = tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path / "model")
    tokens = load_tokenizer(directory, cache).encode(TEXT)
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(damage(whole))
    assert load_tokenizer(directory, cache).encode(TEXT) == tokens
    (said,) = [one.getMessage() for one in caplog.records]
    assert said == f"{kept} is damaged: the tokenizer is made again from the model's files"
    assert kept.read_bytes() == whole


def test_what_the_format_cannot_say_is_not_kept(tmp_path: Path, cache: Path) -> None:
    """encode_special_tokens is no part of the JSON, so a copy would read special tokens in texts as such."""
    backend = tokenizers.Tokenizer.from_str(tiny_tokenizers.byte_level_json())
    backend.encode_special_tokens = True
    assert Tokenizer(backend).to_json() is None


def test_a_cache_that_cannot_be_written_costs_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path / "model")
    assert load_tokenizer(directory, tmp_path / "nowhere").encode("a")
    assert len(caplog.records) == 1
    assert "nowhere" in caplog.text


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_byte_order_marks_of_a_tokenizers_files_change_nothing(encoding: str, tmp_path: Path) -> None:
    directory = tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path / "model")
    plain = load_tokenizer(directory, None).encode(TEXT)
    for file in directory.glob("*.json"):
        file.write_text(file.read_text("utf-8"), encoding)
    assert tokenizer_problem(directory) == ""
    assert load_tokenizer(directory, None).encode(TEXT) == plain
