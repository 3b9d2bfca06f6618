"""Files of checkpoints as people have them: without an index, with one from before, with names that tools wrapped."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxgen.assembly.load_engine import load_engine
from jaxgen.core.config import HubOptions
from jaxgen.core.errors import ConfigError
from jaxgen.server.commands.models import look_at
from jaxgen.tools.plan import plan_model
from jaxgen.weights.huggingface.no_weights import is_no_weight
from jaxgen.weights.resolve import resolve_model
from jaxgen.weights.summary import summarize
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
    assert not summarize(directory).problem
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


@pytest.mark.parametrize(
    "names",
    [
        ("gptq_model-4bit-128g.safetensors",),
        ("model.fp16.safetensors",),
        ("pytorch_model-00001-of-00002.safetensors", "pytorch_model-00002-of-00002.safetensors"),
        ("model-00000-of-00002.safetensors", "model-00001-of-00002.safetensors"),
        ("model.safetensors-1-of-2.safetensors", "model.safetensors-2-of-2.safetensors"),
        ("layers_a.safetensors", "layers_b.safetensors", "other.SAFETENSORS"),
    ],
)
def test_files_of_other_names_are_read_without_an_index(names: tuple[str, ...], tmp_path: Path) -> None:
    directory = in_files(tmp_path / "model", *names)
    for other in ("adapter_model.safetensors", "consolidated.safetensors"):
        save_file({"other": np.ones(3, np.float32)}, directory / other)
    assert bits_of(directory) == bits_of(GOLDENS / "llama")


def test_an_index_of_another_name_is_followed(tmp_path: Path) -> None:
    directory = in_files(tmp_path / "model", "weights-a.safetensors", "weights-b.safetensors")
    places = {tensor: file.name for file in directory.glob("*.safetensors") for tensor in load_file(file)}
    save_file({"model.norm.weight": np.zeros(3, np.float32)}, directory / "left.safetensors")
    (directory / "gptq_model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert bits_of(directory) == bits_of(GOLDENS / "llama")


def test_files_of_two_models_are_not_mixed(tmp_path: Path) -> None:
    directory = in_files(tmp_path / "model", "fp16.safetensors")
    in_files(directory, "fp32.safetensors")
    with pytest.raises(ConfigError, match=r"is in fp16.safetensors and in fp32.safetensors, and no index says which"):
        bits_of(directory)


def test_what_is_no_model_is_said_by_its_name(tmp_path: Path) -> None:
    directory = in_files(tmp_path / "model", "adapter_model.safetensors")
    with pytest.raises(ConfigError, match=r"only adapter_model.safetensors, which is a LoRA adapter: merge it into"):
        bits_of(directory)


def test_a_missing_file_is_told_alike_by_all_before_anything_is_compiled(tmp_path: Path) -> None:
    directory = in_files(tmp_path / "model", *SHARDS)
    places = {tensor: name for name in SHARDS for tensor in load_file(directory / name)}
    (directory / INDEX).write_text(json.dumps({"weight_map": places}))
    for name in SHARDS[:1]:
        (directory / name).rename(directory / "away")
        problem = f"{directory / name} is missing, but {INDEX} names it: the download is incomplete"
        assert look_at(str(directory), HubOptions()).problem == problem
        for start in (plan_model, load_engine):
            with pytest.raises(ConfigError) as caught:
                start(str(directory), cache_dir=tmp_path / "cache")
            assert str(caught.value) == problem
        (directory / "away").rename(directory / name)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 23\n"


@pytest.mark.parametrize(
    "name", [ONE, INDEX, "config.json", "tokenizer.json", "tokenizer.model", "chat_template.jinja", "model.gguf"]
)
def test_a_pointer_of_git_lfs_is_told(name: str, tmp_path: Path) -> None:
    directory = in_files(tmp_path / "model", ONE)
    (directory / name).write_text(POINTER)
    if name == INDEX:
        (directory / ONE).unlink()
    model = directory / name if name.endswith("gguf") else directory
    problem = f"{directory / name} is a Git LFS pointer: run git lfs pull"
    assert look_at(str(model), HubOptions()).problem == problem
    with pytest.raises(ConfigError, match=problem):
        load_engine(str(model), cache_dir=tmp_path / "cache")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (POINTER.replace("git-lfs", "hawser"), "is a Git LFS pointer: run git lfs pull"),
        ("<!DOCTYPE html>\n<title>Sign in</title>", "is a web page in place of the file: download it again"),
    ],
)
def test_other_texts_in_place_of_weights_are_told(content: str, says: str, tmp_path: Path) -> None:
    directory = in_files(tmp_path / "model", ONE)
    (directory / ONE).write_text(content)
    with pytest.raises(ConfigError, match=f"{ONE} {says}"):
        bits_of(directory)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_changes_nothing(encoding: str, tmp_path: Path) -> None:
    directory = in_files(tmp_path / "model", ONE)
    config = directory / "config.json"
    config.write_text(config.read_text(), encoding=encoding)
    assert resolve_model(str(directory)) == directory
    assert bits_of(directory) == bits_of(GOLDENS / "llama")


BUFFERS = (
    *("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached", "rotary_emb.original_inv_freq"),
    *("masked_bias", "bias", "causal_mask", "inv_freq", "rotary_pos_emb.freqs", "_extra_state", "q_proj._extra_state"),
    *("prob_output_scale", "k_proj.output_scale", "k_bmm_quantizer._amax"),
)
WHOLE = ("model.freqs_cis", "model.rotary_emb.inv_freq", "model.embed_tokens.position_ids", "v_head.summary.weight")


@pytest.mark.parametrize("name", [*(f"model.layers.0.self_attn.{one}" for one in BUFFERS), *WHOLE])
def test_buffers_are_no_weights(name: str) -> None:
    assert is_no_weight(name)


@pytest.mark.parametrize(
    "name",
    [
        *("model.layers.0.self_attn.q_proj.bias", "model.layers.0.mlp.bias", "model.alibi", "q_proj.scale"),
        *("model.layers.2.input_layernorm.weight", "transformer.h.0.attn.c_attn.bias", "model.rope_proj.weight"),
    ],
)
def test_other_tensors_may_be_weights(name: str) -> None:
    assert not is_no_weight(name)


def test_buffers_of_a_file_are_left_out(tmp_path: Path) -> None:
    extra: dict[str, Any] = {"model.seen": np.ones(2, np.int64), "model.layers.0.allowed": np.ones(2, np.bool_)}
    extra |= {name: np.ones(2, np.float32) for name in WHOLE}
    assert bits_of(in_files(tmp_path / "model", ONE, **extra)) == bits_of(GOLDENS / "llama")
    extra["model.more"] = np.ones(2, np.float32)
    in_files(tmp_path / "model", ONE, **extra)
    with pytest.raises(ConfigError, match=r"without the tensors model.more; they belong to another architecture"):
        bits_of(tmp_path / "model")


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
