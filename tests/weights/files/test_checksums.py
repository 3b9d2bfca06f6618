"""A model's weights are named by their contents, wherever they lie and whatever was read before."""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.weights.convert.command import convert
from jaxgen.weights.converted.manifest import MANIFEST
from jaxgen.weights.files import checksums as contents
from jaxgen.weights.files.checksums import checksums_of
from jaxgen.weights.load import weights_digest
from jaxgen.weights.packaged.tiny import make_tiny_checkpoint
from tests.support.damaged_files import DAMAGES

FILE = "model.safetensors"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    make_tiny_checkpoint(directory)
    return directory


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of checksums, in which small files count as large."""
    monkeypatch.setattr(contents, "LEAST_KEPT", 1)
    folder = tmp_path / "kept"
    folder.mkdir()
    return folder


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_equal_directories_have_one_digest_and_another_value_has_another(model: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(model, tmp_path / "copy")
    before = weights_digest(model)
    assert weights_digest(copy) == before
    (copy / "config.json").write_text("{}")  # no weight
    assert weights_digest(copy) == before
    flip_last_byte(copy / FILE)
    assert weights_digest(copy) != before


def test_a_converted_directory_is_named_by_its_manifest(model: Path, tmp_path: Path) -> None:
    converted, copy = tmp_path / "converted", tmp_path / "copy"
    convert(str(model), converted, progress=False)
    shutil.copytree(converted, copy)
    before = weights_digest(converted)
    assert weights_digest(copy) == before
    manifest = json.loads((copy / MANIFEST).read_text())
    name = next(name for name in manifest["files"] if name.startswith("params/"))
    manifest["files"][name]["sha256"] = "0" * 64
    (copy / MANIFEST).write_text(json.dumps(manifest))
    assert weights_digest(copy) != before


def test_a_file_is_read_again_only_when_it_has_changed(
    model: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counting(directory: Path, names: Iterable[str], label: str, progress: bool) -> dict[str, str]:
        read.extend(names)
        return checksums_of(directory, names, label, progress)

    monkeypatch.setattr(contents, "checksums_of", counting)
    before = weights_digest(model, kept)
    assert weights_digest(model, kept) == before == weights_digest(model)
    assert read == [FILE, FILE]  # the first, and the one without a folder
    times = (model / FILE).stat()
    flip_last_byte(model / FILE)
    os.utime(model / FILE, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a copy that keeps times would
    assert (model / FILE).stat().st_mtime_ns == times.st_mtime_ns
    assert weights_digest(model, kept) != before
    assert read == [FILE, FILE, FILE]


def test_small_files_and_damaged_notes_are_read_again(
    model: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = weights_digest(model, kept)
    (note,) = kept.iterdir()
    whole = note.read_bytes()
    for damage in DAMAGES.values():
        note.write_bytes(damage(whole))
        assert weights_digest(model, kept) == before
        assert note.read_bytes() == whole
    assert len(caplog.records) == len(DAMAGES)
    note.unlink()
    monkeypatch.setattr(contents, "LEAST_KEPT", 2**40)
    assert weights_digest(model, kept) == before
    assert list(kept.iterdir()) == []


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no weights"):
        weights_digest(tmp_path)
