"""Prepared parameters come back to the bit, or not at all."""

import logging
import os
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxgen.core.model_config import DType, ModelConfig
from jaxgen.kernels.choice import REFERENCE, native
from jaxgen.models import prepared_params
from jaxgen.models.model import PackedParams
from jaxgen.models.placement import abstract_packed_params, pack_params
from jaxgen.models.prepared_params import read_prepared, write_prepared
from tests.support.engines import LLAMA, params_of
from tests.support.native import native as library


def packed(model: ModelConfig) -> PackedParams:
    return pack_params(model, dict(params_of(model)), native(library()))


def shapes(model: ModelConfig) -> PackedParams:
    return abstract_packed_params(model, native(library()))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_bits_come_back(dtype: DType, tmp_path: Path) -> None:
    model = replace(LLAMA, dtype=dtype)
    params, path = packed(model), tmp_path / "kept"
    write_prepared(path, params)
    assert [one.name for one in tmp_path.iterdir()] == ["kept"]
    found = read_prepared(path, shapes(model))
    assert list(found or ()) == list(params)
    for one, other in zip(*map(jax.tree.leaves, (found, params)), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


@pytest.mark.parametrize("where", [0, 0.5, -1])
def test_a_damaged_file_is_removed(where: float, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "kept"
    write_prepared(path, packed(LLAMA))
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= 1
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert read_prepared(path, shapes(LLAMA)) is None
    assert f"{path} is damaged: the weights are loaded from the model's files" in caplog.text
    assert not path.exists()


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_size_is_removed(change: int, tmp_path: Path) -> None:
    path = tmp_path / "kept"
    write_prepared(path, packed(LLAMA))
    os.truncate(path, path.stat().st_size + change)
    assert read_prepared(path, shapes(LLAMA)) is None
    assert not path.exists()


def test_no_file_is_no_trouble(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_prepared(tmp_path / "kept", abstract_packed_params(LLAMA, REFERENCE)) is None
    assert caplog.text == ""


def test_files_used_least_recently_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = packed(LLAMA)
    for age, name in ((3, "old"), (2, "used"), (1, "newer")):
        write_prepared(tmp_path / name, params)
        os.utime(tmp_path / name, (0, 1000 - age))
    monkeypatch.setattr(prepared_params, "MAX_BYTES", 3 * (tmp_path / "old").stat().st_size)
    assert read_prepared(tmp_path / "old", shapes(LLAMA)) is not None
    write_prepared(tmp_path / "another", params)
    assert {one.name for one in tmp_path.iterdir()} == {"old", "newer", "another"}


def test_too_large_weights_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_params, "MAX_BYTES", 1000)
    write_prepared(tmp_path / "kept", packed(LLAMA))
    assert list(tmp_path.iterdir()) == []
