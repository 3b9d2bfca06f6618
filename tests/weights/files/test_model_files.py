"""An opened model directory: what readers ask of it is read once."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from jaxgen.weights.files import members, safetensors
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.load import load_model_config
from tests.support.goldens import GOLDENS, copy_golden


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the files whose JSON or header is read, by name."""
    reads: Counter[str] = Counter()

    def read_json(directory: Path, name: str) -> dict[str, Any]:
        reads[name] += 1
        return members.read_json(directory, name)

    def read_header(path: Path) -> dict[str, safetensors.Tensor]:
        reads[path.name] += 1
        return safetensors.read_header(path)

    monkeypatch.setattr("jaxgen.weights.files.model_files.read_json", read_json)
    monkeypatch.setattr("jaxgen.weights.files.model_files.read_header", read_header)
    return reads


def test_a_configuration_is_read_of_each_file_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = counted(monkeypatch)
    load_model_config(GOLDENS / "opt_pre")
    assert reads == {"config.json": 1, "model.safetensors": 1}


def test_all_that_headers_say_is_read_of_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = counted(monkeypatch)
    files = ModelFiles(GOLDENS / "opt_pre")
    assert set(files.safetensors) == files.tensor_names()
    assert files.stored_weights().num_files == reads["model.safetensors"] == 1


def test_another_opening_sees_what_was_written_since(tmp_path: Path) -> None:
    directory = copy_golden("llama", tmp_path / "model")
    before = ModelFiles(directory).read_json("config.json")
    (directory / "config.json").write_text("{}")
    assert ModelFiles(directory).read_json("config.json") == {} != before
