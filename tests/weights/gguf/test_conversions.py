"""Conversions of GGUF files in the cache directory: made once, found again, and made anew where something changed."""

import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.files.cache_dirs import CacheDirs, open_cache_dirs
from jaxgen.weights.convert import gguf_process as gguf_converter
from jaxgen.weights.convert.command import convert
from jaxgen.weights.converted.manifest import MANIFEST
from jaxgen.weights.encodings.weight_formats import quantization_of
from jaxgen.weights.gguf import conversions as gguf_conversions
from jaxgen.weights.gguf.architectures import ARCHITECTURES
from jaxgen.weights.gguf.conversions import kept_conversion
from jaxgen.weights.gguf.file import GgufFile
from jaxgen.weights.gguf.vocabulary import ends_of
from jaxgen.weights.huggingface.generation_config import read_sampling_defaults
from jaxgen.weights.load import load_model_config
from jaxgen.weights.outline.gguf import gguf_outlines
from tests.support.conversions import bits_of, run
from tests.support.gguf_files import CONTROL, NORMAL, letters, write
from tests.support.goldens import GOLDENS
from tests.support.paths import ROOT

FILE = ROOT / "tests" / "data" / "gguf" / "qwen3.gguf"


@pytest.fixture
def caches(tmp_path: Path) -> CacheDirs:
    return open_cache_dirs(tmp_path / "cache")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What was converted, in this process: a test below starts others."""
    made: list[Path] = []

    def here(file: Path, directory: Path, *about: Any) -> None:
        made.append(file)
        gguf_converter._convert(str(file), directory, *about)

    monkeypatch.setattr(gguf_conversions, "_convert_aside", here)
    return made


def convert_once(file: Path, caches: CacheDirs) -> Path:
    return kept_conversion(file, caches, progress=False)


@pytest.mark.full  # two processes with jax; the parts of it are below
def test_servers_that_start_together_convert_once(caches: CacheDirs, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(lambda _: convert_once(FILE, caches), range(2))
    assert one == two
    said = [record.getMessage() for record in caplog.records if record.filename == "conversions.py"]
    assert sum(line.startswith("loading weights took") for line in said) == 1
    assert bits_of(one) == bits_of(GOLDENS / "qwen3")


def test_who_comes_second_waits(
    caches: CacheDirs, made: list[Path], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    first = convert_once(FILE, caches)
    moved = first.rename(first.with_name("elsewhere"))
    monkeypatch.setattr(gguf_converter, "convert", lambda *_, **__: pytest.fail("it was converted already"))
    with ThreadPoolExecutor(1) as pool:
        with gguf_converter._alone(first.with_name(f".{first.name}.lock")):
            second = pool.submit(convert_once, FILE, caches)
            while "another process converts the same file" not in caplog.text:
                assert not second.done(), second.result()
                time.sleep(0.01)
            moved.rename(first)  # as who has the lock does, when it is done
        assert second.result() == first


def test_a_moved_file_is_found_and_a_changed_one_is_not(caches: CacheDirs, made: list[Path], tmp_path: Path) -> None:
    first = convert_once(FILE, caches)
    copy = tmp_path / "other" / FILE.name
    copy.parent.mkdir()
    shutil.copyfile(FILE, copy)
    link = tmp_path / "link" / FILE.name
    link.parent.mkdir()
    link.symlink_to(copy)
    assert [convert_once(file, caches) for file in (copy, link, FILE)] == [first] * 3
    assert made == [FILE]
    assert caches.converted is not None
    assert first.parent == caches.converted
    data = bytearray(copy.read_bytes())
    data[-1] ^= 1
    copy.write_bytes(data)
    assert convert_once(copy, caches) != first
    assert made == [FILE, copy]


def test_each_quantization_has_its_own(caches: CacheDirs, made: list[Path]) -> None:
    """As it is served by: the device reads what was rounded, and plans count it."""
    one, two = convert_once(FILE, caches), kept_conversion(FILE, caches, quantization="int8", progress=False)
    assert (quantization_of(load_model_config(one)), quantization_of(load_model_config(two))) == ("none", "int8")
    assert made == [FILE, FILE]
    with gguf_outlines("int8") as outline:
        assert load_model_config(outline(FILE), quantization="int8") == load_model_config(two)


def flipped(directory: Path) -> Path:
    files = (path for path in (directory / "params").rglob("*") if path.is_file())
    file = max(files, key=lambda one: one.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return file


def cut(directory: Path) -> Path:
    file = directory / "tokenizer.json"
    os.truncate(file, 10)
    return file


def emptied(directory: Path) -> Path:
    file = directory / MANIFEST
    file.write_bytes(b"")
    return file


@pytest.mark.parametrize("damage", [flipped, cut, emptied])
def test_damaged_conversions_are_made_again(
    damage: Callable[[Path], Path], caches: CacheDirs, made: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    directory = convert_once(FILE, caches)
    wanted = bits_of(directory)
    file = damage(directory)
    assert convert_once(FILE, caches) == directory
    assert bits_of(directory) == wanted
    assert made == [FILE, FILE]
    warnings = {record.getMessage() for record in caplog.records if record.levelno == logging.WARNING}
    assert [one for one in warnings if "is damaged: it is converted again" in one and file.name in one]


def test_a_file_that_changes_meanwhile_gives_no_conversion(
    caches: CacheDirs, made: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a download that ends while it is converted, or while another server is waited for."""
    file, first = tmp_path / FILE.name, FILE.read_bytes()
    file.write_bytes(first)

    def replaced(*args: Any, **options: Any) -> None:
        file.write_bytes(first[:-1] + bytes([first[-1] ^ 1]))
        convert(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(gguf_converter, "convert", replaced)
        with pytest.raises(ConfigError, match=r"qwen3\.gguf changed while being read: start again"):
            convert_once(file, caches)
    assert caches.converted is not None
    assert [path.suffix for path in caches.converted.iterdir()] == [".lock"]
    file.write_bytes(first)
    assert bits_of(convert_once(file, caches)) == bits_of(GOLDENS / "qwen3")


def test_what_killed_conversions_left_goes_with_the_next(caches: CacheDirs, tmp_path: Path) -> None:
    assert caches.converted is not None
    left = {name: caches.converted / f".{name}-0.{end}" for name, end in (("a", "partial"), ("b", "replaced"))}
    for place in (*left.values(), caches.converted / ".c.v2-0.partial"):
        (place / "params").mkdir(parents=True)
    with gguf_converter._alone(caches.converted / ".c.v2-0.lock"):  # it is being written
        gguf_converter._remove_abandoned(caches.converted)
    assert [path.name for path in caches.converted.iterdir() if path.is_dir()] == [".c.v2-0.partial"]


@pytest.mark.parametrize("stem", ["\u6a21" * 81, "m" * 250])
def test_long_names_are_cut(stem: str, caches: CacheDirs, made: list[Path], tmp_path: Path) -> None:
    file = tmp_path / f"{stem}.gguf"
    file.symlink_to(FILE)
    directory = convert_once(file, caches)
    assert stem.startswith(directory.name.rpartition("-")[0])
    assert len(directory.name) >= 80


def test_the_parts_of_a_model(caches: CacheDirs, made: list[Path], tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", GOLDENS / "llama", "llama", split=8)
    first, second, third = sorted(tmp_path.glob("m-*.gguf"))
    assert bits_of(convert_once(first, caches)) == bits_of(GOLDENS / "llama")
    with pytest.raises(ConfigError, match=r"is part 2 of 3: name the first, m-00001-of-00003\.gguf"):
        convert_once(second, caches)
    data = bytearray(third.read_bytes())
    data[-1] ^= 1
    third.write_bytes(data)
    convert_once(first, caches)
    assert made == [first, first]


def test_what_the_process_says_of_a_failure(
    caches: CacheDirs, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It goes through a pipe to the process that serves; nothing is left behind."""
    file = tmp_path / "m.gguf"
    file.write_bytes(b"PK\3\4")
    with pytest.raises(ConfigError, match=r"m\.gguf is not a GGUF file: it begins with b'PK"):
        convert_once(file, caches)
    assert caches.converted is not None
    assert [path.suffix for path in caches.converted.iterdir()] == [".lock"]
    assert capfd.readouterr().err == ""


def test_records_of_the_process_are_logged_as_its_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert gguf_conversions._tell(json.dumps({"name": "jaxgen.x", "level": logging.INFO, "text": "50 %"})) is None
    assert caplog.record_tuples == [("jaxgen.x", logging.INFO, "50 %")]
    assert gguf_conversions._tell(json.dumps({"failed": "so"})) == "so"


def test_where_nothing_can_be_kept() -> None:
    with pytest.raises(
        ConfigError, match=r"no cache directory .*--cache-dir, or convert it: jaxgen convert-weights .*"
    ):
        convert_once(FILE, CacheDirs())


def test_room_on_the_disk_is_looked_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ConfigError, match=r"dest needs 0\.00 GiB, and its disk has 0\.00 GiB left"):
        run(FILE, tmp_path / "dest")


def test_sampling_defaults(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sampling = {"temp": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "penalty_repeat": 1.1, "mirostat": 2}
    metadata = {f"general.sampling.{name}": value for name, value in sampling.items()}
    file = write(tmp_path / "m.gguf", GOLDENS / "llama", "llama", metadata=metadata)
    found = read_sampling_defaults(run(file, tmp_path / "converted"))
    assert (found.temperature, found.top_k, found.top_p, found.min_p) == (0.6, 20, 0.95, 0.05)
    assert found.repetition_penalty == 1.1
    assert "general.sampling.mirostat: not used" in caplog.text


@pytest.mark.parametrize(
    ("family", "tokens", "wanted"),
    [
        ("llama", ["<|end|>", "<|user|>"], ["<|end|>"]),
        ("gpt-oss", ["<|end|>", "<|return|>", "<|call|>"], ["<|return|>", "<|call|>"]),
        ("glm4", ["<|user|>", "<|observation|>", "<|end|>"], ["<|user|>", "<|observation|>"]),
        ("gemma2", ["<end_of_turn>", "<|user|>"], ["<end_of_turn>"]),
    ],
)
def test_ends_are_the_architecture_s(family: str, tokens: list[str], wanted: list[str], tmp_path: Path) -> None:
    """Harmony's <|end|> ends one message of several."""
    most = letters(250)
    kinds = [NORMAL] * 250 + [CONTROL] * len(tokens)
    vocabulary = most | {"tokens": most["tokens"] + tokens, "kinds": kinds}
    file = GgufFile(write(tmp_path / "m.gguf", GOLDENS / "llama", "llama", vocabulary=vocabulary))
    ends = ends_of(file, ARCHITECTURES[family])["eos_token_id"]
    assert [vocabulary["tokens"][token] for token in ends] == wanted
