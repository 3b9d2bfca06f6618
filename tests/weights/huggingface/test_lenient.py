"""What other servers read without a word is read here too, and changes nothing."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxgen.core.errors import ConfigError
from jaxgen.weights.encodings.methods import encodings_of
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.huggingface.config import read_model_config
from jaxgen.weights.load import load_model_config, load_params
from tests.support.goldens import copy_golden
from tests.support.hub_configs import HUB
from tests.support.quantised_cases import compressed


def described(directory: Path, **fields: Any) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(HUB["Qwen3-0.6B"].config | fields))
    return directory


@pytest.mark.parametrize(
    "fields",
    [
        {"use_sliding_window": None, "attention_bias": None},
        {"neftune_noise_alpha": 5, "attn_implementation": "eager", "logits_to_keep": 1},
        {"end_token_id": 7, "im_end_token_id": 8, "eod_id": 9, "image_token_index": 5},
        {"compression_config": {"quant_method": "compressed-tensors", "config_groups": {}}},
        {"quantization_config": {"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 8}, "quant_algo": None}},
    ],
)
def test_fields_that_change_nothing(fields: dict[str, Any], tmp_path: Path) -> None:
    assert read_model_config(ModelFiles(described(tmp_path, **fields))) == read_model_config(
        ModelFiles(described(tmp_path / "plain"))
    )


@pytest.mark.parametrize("more", [{"finetuned": True}, {"attn_factor": 1.3, "extrapolation_factor": 1.0}])
def test_fields_of_a_rotation_that_transformers_does_not_read_are_told(
    more: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
    without = read_model_config(ModelFiles(described(tmp_path, rope_scaling=yarn)))
    with caplog.at_level(logging.WARNING):
        assert read_model_config(ModelFiles(described(tmp_path, rope_scaling=yarn | more))) == without
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.endswith(
        f"rope_scaling: {' and '.join(more)} changes nothing with rope type 'yarn', as by transformers"
    )


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("half", "float16"),
        ("bf16", "bfloat16"),
        ("torch.float", "float32"),
        ("BFloat16", "bfloat16"),
        ("fp16", "float16"),
    ],
)
def test_other_names_of_dtypes(name: str, dtype: str, tmp_path: Path) -> None:
    assert read_model_config(ModelFiles(described(tmp_path, torch_dtype=name, dtype=None))).dtype == dtype


@pytest.mark.parametrize("stored", ["float16", "float32"])
def test_auto_is_the_dtype_of_the_files(stored: str, tmp_path: Path) -> None:
    directory = described(tmp_path, torch_dtype="auto", dtype=None)
    assert read_model_config(ModelFiles(directory)).dtype == "float32"
    save_file({"a": np.ones(8, stored), "b": np.ones(2, np.float32)}, directory / "model.safetensors")
    assert read_model_config(ModelFiles(directory)).dtype == stored


def test_an_unknown_dtype_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"torch_dtype is 'int8'; supported: float32, bfloat16, float16"):
        read_model_config(ModelFiles(described(tmp_path, torch_dtype="int8", dtype=None)))


def test_the_first_versions_field_of_compressed_tensors_is_read(tmp_path: Path) -> None:
    old, new = (
        described(tmp_path / name, **{name: compressed() | {"quant_method": method}})
        for name, method in (("compression_config", "sparseml"), ("quantization_config", "compressed-tensors"))
    )
    assert encodings_of(ModelFiles(old)) == encodings_of(ModelFiles(new)) != ()


def test_a_description_of_the_kv_cache_alone_means_plain_weights(tmp_path: Path) -> None:
    directory = described(tmp_path)
    about = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}
    (directory / "hf_quant_config.json").write_text(json.dumps(about))
    assert encodings_of(ModelFiles(directory)) == ()


def test_a_head_under_a_name_without_one_is_told_by_that_name(tmp_path: Path) -> None:
    directory = copy_golden("qwen3", tmp_path / "model")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"architectures": ["Qwen3Model"]}))
    (file,) = directory.glob("*.safetensors")
    tensors = load_file(file)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + np.ones((), np.float32)
    save_file(tensors, file)
    with pytest.raises(ConfigError, match=r"there is a head, lm_head.weight, but architectures .* without"):
        load_params(directory, load_model_config(directory), progress=False)
