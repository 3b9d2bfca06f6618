"""A converted directory is verified when it is loaded."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from jaxgen.core.errors import ConfigError
from jaxgen.weights.converted.manifest import read_manifest
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.load import load_model_config, load_params
from tests.support.conversions import run, tiny_conversion
from tests.support.goldens import copy_golden


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    return tiny_conversion(tmp_path)


def every_file(directory: Path) -> list[str]:
    return sorted(read_manifest(ModelFiles(directory)).files)


def test_one_changed_byte_in_any_file_is_found(converted: Path) -> None:
    config = load_model_config(converted)
    for name in every_file(converted):
        path = converted / name
        content = bytearray(path.read_bytes())
        if not content:
            continue
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            load_params(converted, config, progress=False)
        assert str(caught.value).startswith(f"{path} is corrupt: its SHA-256 is not the one in jaxgen.json")
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    assert load_params(converted, config, progress=False)


@pytest.mark.parametrize("checksums", [True, False])
def test_a_file_of_another_size_is_found(converted: Path, checksums: bool) -> None:
    config = load_model_config(converted)
    for name in every_file(converted):
        path = converted / name
        content = path.read_bytes()
        path.write_bytes(content + b" ")
        with pytest.raises(ConfigError) as caught:
            load_params(converted, config, checksums=checksums, progress=False)
        assert str(caught.value).startswith(f"{path} has {len(content) + 1} bytes, but jaxgen.json says {len(content)}")
        path.unlink()
        with pytest.raises(ConfigError) as caught:
            load_params(converted, config, checksums=checksums, progress=False)
        assert str(caught.value).startswith(f"{path} is missing, but jaxgen.json names it")
        path.write_bytes(content)


def test_checksums_can_be_left_out(converted: Path) -> None:
    path = converted / "tokenizer.json"
    path.write_bytes(path.read_bytes().replace(b"version", b"Version"))
    assert load_params(converted, load_model_config(converted), checksums=False, progress=False)


def test_damage_that_nobody_looked_for_is_one_error(converted: Path) -> None:
    data = max((converted / "params").rglob("*"), key=lambda path: path.stat().st_size)
    data.write_bytes(bytes(data.stat().st_size))
    with pytest.raises(ConfigError) as caught:
        load_params(converted, load_model_config(converted), checksums=False, progress=False)
    assert str(caught.value).startswith(f"{converted}/params cannot be read, convert the checkpoint again: ")
    assert len(str(caught.value)) < 500


def test_parameters_of_another_shape_are_refused(converted: Path) -> None:
    """Orbax itself would hand them over."""
    config = json.loads((converted / "config.json").read_text())
    (converted / "config.json").write_text(json.dumps(config | {"intermediate_size": 80}))
    manifest = json.loads((converted / "jaxgen.json").read_text())
    del manifest["files"]["config.json"]
    (converted / "jaxgen.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match=r"layers\.mlp\.down\.weight has shape \(2, 64, 160\), but config.json means"):
        load_params(converted, load_model_config(converted), progress=False)


def test_another_family_is_refused(converted: Path) -> None:
    manifest = json.loads((converted / "jaxgen.json").read_text())
    (converted / "jaxgen.json").write_text(json.dumps(manifest | {"family": "opt"}))
    with pytest.raises(ConfigError, match=r"jaxgen\.json: family is 'opt', but config\.json means another"):
        load_params(converted, load_model_config(converted), progress=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"format_version": 6},
            "format_version is 6 and this version reads 1 and 2 and 3 and 4 and 5; convert the",
        ),
        ({"dtype": "int8"}, "dtype is 'int8'; it must be one of float32, bfloat16, float16"),
        ({"files": []}, "is damaged"),
        ({"files": {"config.json": {"size": "1", "sha256": ""}}}, "is damaged"),
        ({"files": {"config.json": None}}, "is damaged"),
        ({"files": {"../x": {"size": 1, "sha256": ""}}}, "the file name '../x' leads out of the directory"),
    ],
)
def test_bad_manifest(converted: Path, change: dict[str, Any], message: str) -> None:
    config = load_model_config(converted)
    manifest = json.loads((converted / "jaxgen.json").read_text())
    (converted / "jaxgen.json").write_text(json.dumps(manifest | change))
    with pytest.raises(ConfigError) as caught:
        load_params(converted, config, progress=False)
    assert message in str(caught.value)


def test_link_out_of_the_converted_directory_is_refused(converted: Path, tmp_path: Path) -> None:
    (converted / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    (converted / "tokenizer.json").symlink_to(tmp_path / "tokenizer.json")
    with pytest.raises(ConfigError, match=r"tokenizer\.json is a link out of the directory"):
        load_params(converted, load_model_config(converted), progress=False)


def test_values_that_float16_cannot_hold_are_refused_on_load(tmp_path: Path) -> None:
    source = copy_golden("opt_pre", tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    tensors["model.decoder.final_layer_norm.bias"][0] = 1e5
    save_file(tensors, source / "model.safetensors")
    directory = run(source, tmp_path / "converted")
    with pytest.raises(ConfigError, match=r"norm\.bias has values that float16 cannot hold"):
        load_params(directory, load_model_config(directory, "float16"), progress=False)
