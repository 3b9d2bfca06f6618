"""Files of checkpoints as people have them: without an index, with one from before, with names that tools wrapped."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxgen.core.errors import ConfigError
from jaxgen.weights.survey import survey
from tests.support.conversions import bits_of
from tests.support.goldens import GOLDENS

INDEX = "model.safetensors.index.json"


def in_files(directory: Path, *names: str, prefix: str = "", without: str = "", **more: Any) -> Path:
    """A golden whose tensors are spread over files of these names, without an index.

    ``prefix``: before all names of tensors; ``without``: the name of one that is left out.
    """
    directory.mkdir(exist_ok=True)
    shutil.copyfile(GOLDENS / "llama" / "config.json", directory / "config.json")
    stored = [load_file(file) for file in sorted((GOLDENS / "llama").glob("*.safetensors"))]
    tensors = {prefix + key: value for one in stored for key, value in one.items() if key != without} | more
    for number, name in enumerate(names):
        save_file(dict(list(tensors.items())[number :: len(names)]), directory / name)
    return directory


ONE = "model.safetensors"
SHARDS = tuple(f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3))


def test_numbered_files_need_no_index(tmp_path: Path) -> None:
    directory = in_files(tmp_path / "model", *SHARDS)
    assert bits_of(directory) == bits_of(GOLDENS / "llama")
    assert not survey(directory).problem
    (directory / SHARDS[1]).unlink()
    with pytest.raises(ConfigError, match=f"{SHARDS[1]} is missing, although .* the download is incomplete"):
        bits_of(directory)


def test_a_single_file_from_before_is_not_read_beside_an_index(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = in_files(tmp_path / "model", *SHARDS)
    places = {tensor: name for name in SHARDS for tensor in load_file(directory / name)}
    (directory / INDEX).write_text(json.dumps({"weight_map": places}))
    save_file({"model.norm.weight": np.ones(3, np.float32)}, directory / "model.safetensors")
    with caplog.at_level(logging.WARNING):
        assert bits_of(directory) == bits_of(GOLDENS / "llama")
    assert f"{directory}: model.safetensors is not read, since {INDEX} lists other files" in caplog.text


def test_an_index_from_before_is_not_followed_beside_a_whole_file(tmp_path: Path) -> None:
    directory = in_files(tmp_path / "model", ONE)
    (directory / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": SHARDS[0]}}))
    assert bits_of(directory) == bits_of(GOLDENS / "llama")


@pytest.mark.parametrize("prefix", ["base_model.model.", "_orig_mod.", "module.", "module._orig_mod."])
def test_what_tools_write_before_all_names_is_left_out(prefix: str, tmp_path: Path) -> None:
    directory = in_files(tmp_path / "model", ONE, prefix=prefix)
    assert bits_of(directory) == bits_of(GOLDENS / "llama")
    in_files(directory, ONE, prefix=prefix, without="model.norm.weight")
    with pytest.raises(ConfigError, match=r"the tensor model\.norm\.weight is missing"):
        bits_of(directory)


SCALES = (
    *("self_attn.k_scale", "self_attn.v_scale", "self_attn.kv_scale", "self_attn.q_scale", "self_attn.prob_scale"),
    *("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale", "self_attn.attn.k_scale", "self_attn.v_zero_point"),
)


@pytest.mark.parametrize("scale", SCALES)
def test_scales_of_a_quantised_cache_are_not_needed(scale: str, tmp_path: Path) -> None:
    extra: dict[str, Any] = {f"model.layers.{layer}.{scale}": np.ones(1, np.float32) for layer in range(2)}
    directory = in_files(tmp_path / "model", ONE, **extra)
    assert bits_of(directory) == bits_of(GOLDENS / "llama")
