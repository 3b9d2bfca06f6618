"""Directories with weights of few bits: the bits of quantising at load, and what is said of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.core.quantization import GroupedWeight, Quantization
from jaxgen.weights.convert import command as convert
from jaxgen.weights.converted.manifest import read_manifest
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.load import load_model_config, load_params
from jaxgen.weights.summary import check_weights
from tests.support.conversions import run
from tests.support.goldens import GOLDENS, bits


def all_bits(directory: Path, quantization: Quantization = "none") -> dict[str, Any]:
    config = load_model_config(directory, quantization=quantization)
    params = load_params(directory, config, place=lambda _, value: value, progress=False)
    return {
        path: {name: bits(array) for name, array in value.arrays()} if isinstance(value, GroupedWeight) else bits(value)
        for path, value in params.items()
    }


@pytest.mark.parametrize(("name", "quantization"), [("llama", "int8"), ("qwen2_moe", "int4")])
def test_converted_is_what_quantising_at_load_gives(name: str, quantization: Quantization, tmp_path: Path) -> None:
    """Whether the conversion or the loading of a conversion quantises."""
    expected = all_bits(GOLDENS / name, quantization)
    directory = run(GOLDENS / name, tmp_path / "quantised", quantization=quantization)
    plain = run(GOLDENS / name, tmp_path / "plain")
    assert all_bits(directory) == all_bits(directory, quantization) == all_bits(plain, quantization) == expected
    config = load_model_config(directory)
    assert config == load_model_config(GOLDENS / name, quantization=quantization)
    assert dict(config.weight_formats) == read_manifest(ModelFiles(directory)).formats
    assert check_weights(directory, config).num_bytes < check_weights(plain, load_model_config(plain)).num_bytes


def test_what_is_not_quantised_is_as_earlier_versions_read_it(tmp_path: Path) -> None:
    directory = run(GOLDENS / "llama", tmp_path / "plain")
    data = json.loads((directory / "jaxgen.json").read_text())
    assert data.keys() == {"format_version", "family", "dtype", "files"}
    assert data["format_version"] == 1


def test_another_quantization_is_refused_by_name(tmp_path: Path) -> None:
    directory = run(GOLDENS / "llama", tmp_path / "int4", quantization="int4")
    with pytest.raises(ConfigError) as caught:
        load_model_config(directory, quantization="int8")
    assert str(caught.value) == (
        f"--quantization int8: {directory} has weights that are quantised already, to int4; leave the flag out, "
        f"or take a checkpoint that is not quantised"
    )


def damage(directory: Path, **entry: object) -> None:
    file = directory / "jaxgen.json"
    data = json.loads(file.read_text())
    data["weight_formats"]["layers.attn.out.weight"] |= entry
    file.write_text(json.dumps(data))


def several(directory: Path, outputs: int, layers: list[int]) -> None:
    """Say that a parameter has two formats."""
    file = directory / "jaxgen.json"
    data = json.loads(file.read_text())
    form = data["weight_formats"]["layers.mlp.down.weight"]
    kinds = [[{"format": form | {"bits": bits}, "outputs": outputs}] for bits in (4, 8)]
    data["weight_formats"]["layers.attn.out.weight"] = {"kinds": kinds, "layers": layers}
    file.write_text(json.dumps(data))


def test_several_formats_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    directory = run(GOLDENS / "llama", tmp_path / "int8", quantization="int8")
    several(directory, 64, [0, 2])
    with pytest.raises(ConfigError, match=r"jaxgen.json is damaged .*; convert the checkpoint again"):
        load_model_config(directory)
    for outputs, layers, said in ((64, [0, 1, 1], "in 3 layers with 64"), (32, [0, 1], "in 2 layers with 32")):
        several(directory, outputs, layers)
        with pytest.raises(ConfigError, match=rf"out\.weight {said} outputs, but config.json means 2 with 64; convert"):
            load_params(directory, load_model_config(directory), progress=False)


@pytest.mark.parametrize("entry", [{"bits": 3}, {"group": 0}, {"group": "all"}, {"scale_dtype": "fp8"}, {"kinds": []}])
def test_damaged_formats_are_refused(entry: dict[str, object], tmp_path: Path) -> None:
    directory = run(GOLDENS / "llama", tmp_path / "int8", quantization="int8")
    damage(directory, **entry)
    with pytest.raises(ConfigError, match=r"jaxgen.json is damaged .*; convert the checkpoint again"):
        load_model_config(directory)


def test_formats_that_the_arrays_do_not_have_are_refused(tmp_path: Path) -> None:
    directory = run(GOLDENS / "llama", tmp_path / "int8", quantization="int8")
    damage(directory, group=32)
    with pytest.raises(ConfigError, match=r"layers\.attn\.out\.weight\.scales has shape \(2, 64, 1\), but config.json"):
        load_params(directory, load_model_config(directory), progress=False)


def test_command(tmp_path: Path) -> None:
    convert.main([str(GOLDENS / "llama"), str(tmp_path / "dest"), "--quantization", "int4"])
    assert load_model_config(tmp_path / "dest") == load_model_config(GOLDENS / "llama", quantization="int4")
