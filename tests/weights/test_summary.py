"""What a directory is, in a line, and why it is not supported."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from jaxgen.core.errors import ConfigError
from jaxgen.weights.families.registry import ARCHITECTURES
from jaxgen.weights.huggingface.wrappers import WRAPPERS
from jaxgen.weights.load import load_model_config
from jaxgen.weights.packaged.tiny import make_tiny_checkpoint
from jaxgen.weights.summary import (
    ModelSummary,
    check_weights,
    in_short,
    num_parameters,
    served_architectures,
    summarize,
)
from tests.support.conversions import tiny_conversion
from tests.support.goldens import GOLDENS, NAMES, copy_golden


def edit(directory: Path, **fields: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize("name", NAMES)
def test_goldens_are_supported(name: str) -> None:
    facts, config = summarize(GOLDENS / name), load_model_config(GOLDENS / name)
    (architecture,) = json.loads((GOLDENS / name / "config.json").read_text())["architectures"]
    dtype = "MXFP4 as bfloat16" if "mxfp4" in name else config.dtype
    assert facts == ModelSummary(architecture, num_parameters(config), dtype, config.max_position, config.windows, True)


def test_parameters_are_the_numbers_in_the_files(tmp_path: Path) -> None:
    make_tiny_checkpoint(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    count = sum(tensor.size for tensor in stored.values())
    facts = summarize(tmp_path)
    assert facts == ModelSummary("LlamaForCausalLM", count, "float32", 2048, (), True)
    assert str(facts) == f"LlamaForCausalLM, {count:,} parameters, float32, context 2,048, no window"
    assert check_weights(tmp_path, load_model_config(tmp_path)).numbers == {"float32": count}


@pytest.mark.parametrize(
    ("windows", "text"),
    [((), "no window"), ((2047,) * 2, "window 2,047"), ((128, None, 128), "window 128 in 2 of 3 layers")],
)
def test_windows_in_short(windows: tuple[int | None, ...], text: str) -> None:
    assert str(ModelSummary(windows=windows)) == text


def test_every_architecture_is_of_one_family() -> None:
    listed = [name for names in served_architectures().values() for name in names]
    assert sorted(listed) == sorted((*ARCHITECTURES, *WRAPPERS))


@pytest.mark.parametrize(
    ("count", "text"),
    [(4096, "4,096"), (499_999, "499,999"), (2_764_800, "2.8 M"), (596_049_920, "0.6 B"), (70_553_706_496, "70.6 B")],
)
def test_numbers_in_short(count: int, text: str) -> None:
    assert in_short(count) == text


def test_another_architecture_is_described_by_its_files(tmp_path: Path) -> None:
    directory = copy_golden("llama", tmp_path / "model")
    edit(directory, architectures=["OtherForCausalLM"], dtype="bfloat16")
    facts = summarize(directory)
    assert (facts.architecture, facts.dtype) == ("OtherForCausalLM", "bfloat16")
    assert facts.parameters == num_parameters(load_model_config(GOLDENS / "llama"))
    assert "architectures is ['OtherForCausalLM']; supported: " in facts.problem


def test_the_text_of_a_multimodal_model_has_its_context(tmp_path: Path) -> None:
    config = {"architectures": ["XForConditionalGeneration"]}
    text = {"max_position_embeddings": 4096, "torch_dtype": "torch.float16"}
    (tmp_path / "config.json").write_text(json.dumps({**config, "text_config": text}))
    facts = summarize(tmp_path)
    assert str(facts) == "XForConditionalGeneration, float16, context 4,096"
    assert facts.problem


@pytest.mark.parametrize("config", ["[]", "{", "{}", '{"architectures": 3, "dtype": 4, "text_config": []}'])
def test_a_configuration_that_says_nothing(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    facts = summarize(tmp_path)
    assert str(facts) == ""
    assert "config.json" in facts.problem
    assert "\n" not in facts.problem


def test_weights_that_do_not_fit_the_configuration(tmp_path: Path) -> None:
    directory = copy_golden("opt_pre", tmp_path / "model")
    edit(directory, hidden_size=32)
    assert "has shape" in summarize(directory).problem
    (directory / "model.safetensors").unlink()
    facts = summarize(directory)
    assert "has no weights" in facts.problem
    assert facts.parameters is None


def test_a_converted_directory_is_known_by_its_manifest(tmp_path: Path) -> None:
    directory = tiny_conversion(tmp_path)
    config = load_model_config(directory)
    assert summarize(directory) == summarize(tmp_path / "source")
    stored = check_weights(directory, config)
    assert stored.numbers == {"float32": num_parameters(config)}
    assert stored.num_bytes > 4 * num_parameters(config)
    (file, *_) = [path for path in (directory / "params").rglob("*") if path.is_file()]
    file.unlink()
    with pytest.raises(ConfigError, match=r"is missing, but jaxgen\.json names it"):
        check_weights(directory, config)
