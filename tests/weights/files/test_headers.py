"""What safetensors files hold, by their headers alone."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxgen.core.errors import ConfigError
from jaxgen.weights.files.model_files import ModelFiles, StoredWeights
from jaxgen.weights.files.safetensors import Tensor, read_header
from tests.support.goldens import GOLDENS, copy_golden


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        read_header(path)
    said = str(refused.value)
    assert said.startswith(f"{path} is not a complete safetensors file: ")
    assert said.count(str(path)) == 1
    assert "\n" not in said
    return said


def test_tensors_have_the_dtypes_and_shapes_that_were_saved(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": np.ones((3, 5), np.float16), "b": np.ones(7, np.int32)}, file, metadata={"format": "pt"})
    end = file.stat().st_size
    assert read_header(file) == {"a": Tensor("F16", (3, 5), end - 30, 30), "b": Tensor("I32", (7,), end - 58, 28)}
    assert ModelFiles(tmp_path).stored_weights() == StoredWeights(1, file.stat().st_size, {"float16": 15, "I32": 7})


def test_a_file_that_is_cut_off(tmp_path: Path) -> None:
    file = copy_golden("opt_pre", tmp_path / "model") / "model.safetensors"
    whole = file.read_bytes()
    for length in (0, 7, 8, 100, len(whole) - 1):
        file.write_bytes(whole[:length])
        refusal(file)
    file.write_bytes(whole + b"x")
    assert f"it has {len(whole) + 1} bytes, and its header means {len(whole)}" in refusal(file)


@pytest.mark.parametrize(
    "header",
    [
        b"no JSON",
        b"\xff\xfe",
        b"[]",
        b"[" * 100_000,
        b'{"a": 1}',
        b'{"a": {"dtype": "F32", "shape": [1]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}',
        b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": ["x"], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, "4"]}}',
    ],
)
def test_a_header_that_is_none(tmp_path: Path, header: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    assert "its header" in refusal(file)


def test_a_header_longer_than_the_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes((2**60).to_bytes(8, "little") + b"{}")
    assert f"a header of {2**60} bytes does not fit" in refusal(file)


def test_a_header_that_would_take_much_memory_is_refused(tmp_path: Path) -> None:
    """Of many values, of many bytes, and with an entry that an error would repeat."""
    file = tmp_path / "model.safetensors"
    header = b'{"a": [%s]}' % (b"," * (2**20 + 1))
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    assert "its header has more than 1048576 values" in refusal(file)
    with file.open("wb") as written:
        written.write((2**25 + 1).to_bytes(8, "little"))
        written.truncate(2**26)
    assert "its header has 33554433 bytes, and may have 33554432" in refusal(file)
    header = b'{"a": {"dtype": "F32", "shape": [%s-1], "data_offsets": [0, 4]}}' % (b"1, " * 1000)
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    assert len(refusal(file)) < 500


def test_a_shard_that_is_missing(tmp_path: Path) -> None:
    directory = copy_golden("opt_pre", tmp_path / "model")
    (directory / "model.safetensors").rename(directory / "one.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=r"two\.safetensors is missing, but model\.safetensors\.index\.json names it"):
        ModelFiles(directory).stored_weights()
    (directory / "two.safetensors").write_bytes((directory / "one.safetensors").read_bytes())
    both, one = ModelFiles(directory).stored_weights(), ModelFiles(GOLDENS / "opt_pre").stored_weights()
    assert (both.num_files, both.num_bytes) == (2, 2 * one.num_bytes)


def test_an_index_that_leads_out_of_the_directory(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "../one.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match="leads out of the directory"):
        ModelFiles(tmp_path).stored_weights()
