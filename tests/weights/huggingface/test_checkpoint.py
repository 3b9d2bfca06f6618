"""Reading Hugging Face directories: dtypes, spellings of names, and everything that can be wrong with the files."""

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxgen.core.errors import ConfigError
from jaxgen.core.model_config import DTYPES, DType
from jaxgen.weights.encodings.weight_formats import NUMPY_DTYPES
from jaxgen.weights.families.parameters import Array
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.huggingface.config import read_model_config
from tests.support.conversions import host_arrays
from tests.support.goldens import GOLDENS, bits, copy_golden

EXTRA = "model.layers.0.self_attn.q_norm.weight"


def read(directory: Path, dtype: DType = "float32") -> dict[str, Array]:
    return host_arrays(directory, read_model_config(ModelFiles(directory), dtype))


def refusal(directory: Path, dtype: DType = "float32") -> str:
    with pytest.raises(ConfigError) as caught:
        read(directory, dtype)
    return str(caught.value)


def rewrite(directory: Path, change: dict[str, Any], file: str = "model.safetensors") -> None:
    """Replace, add or (None) remove tensors of a file."""
    tensors = load_file(directory / file) | change
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, directory / file)


@pytest.fixture
def opt(tmp_path: Path) -> Path:
    return copy_golden("opt_pre", tmp_path / "opt")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return copy_golden("llama", tmp_path / "llama")


@pytest.mark.parametrize("to", DTYPES)
@pytest.mark.parametrize("stored", DTYPES)
def test_dtypes_are_converted_as_numpy_does(opt: Path, stored: DType, to: DType) -> None:
    name = "model.decoder.embed_tokens.weight"
    rng = np.random.default_rng(0)
    values = (rng.standard_normal((256, 64)) * 2.0 ** rng.integers(-20, 4, (256, 64))).astype(NUMPY_DTYPES[stored])
    rewrite(opt, {name: values})
    assert bits(read(opt, to)["embed.weight"]) == bits(values.astype(NUMPY_DTYPES[to]))


def test_halfway_values_round_to_even(opt: Path) -> None:
    """1 + 2^-8 and 1 + 3 * 2^-8 lie between two bfloat16 numbers each."""
    values = np.zeros(64, np.float32)
    values[:3] = 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20
    rewrite(opt, {"model.decoder.final_layer_norm.weight": values})
    rounded = read(opt, "bfloat16")["norm.weight"].astype(np.float32)
    assert rounded[:3].tolist() == [1.0, 1 + 2**-6, 1 + 2**-7]


@pytest.mark.parametrize("stored", [np.float32, ml_dtypes.bfloat16])
def test_values_that_float16_cannot_hold_are_refused(opt: Path, stored: Any) -> None:
    rewrite(opt, {"model.decoder.final_layer_norm.bias": np.full(64, 1e5, stored)})
    message = refusal(opt, "float16")
    assert "model.decoder.final_layer_norm.bias has values that float16 cannot hold; use --dtype bfloat16" in message
    assert read(opt, "bfloat16")["norm.bias"][0] == ml_dtypes.bfloat16(1e5)


@pytest.mark.parametrize("name", ["llama", "opt_350m"])
def test_names_without_model_prefix(name: str, tmp_path: Path) -> None:
    directory = tmp_path / name
    directory.mkdir()
    (directory / "config.json").write_bytes((GOLDENS / name / "config.json").read_bytes())
    tensors: dict[str, Array] = {}
    for file in (GOLDENS / name).glob("*.safetensors"):
        tensors |= {key.removeprefix("model."): tensor for key, tensor in load_file(file).items()}
    assert not any(key.startswith("model.") for key in tensors)
    save_file(tensors, directory / "model.safetensors")
    expected = {path: bits(array) for path, array in read(GOLDENS / name).items()}
    assert {path: bits(array) for path, array in read(directory).items()} == expected


def test_harmless_extras_are_left_out(opt: Path) -> None:
    before = read(opt)
    embed = load_file(opt / "model.safetensors")["model.decoder.embed_tokens.weight"]
    rotary = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(opt, {"lm_head.weight": embed.copy(), rotary: np.ones(4, np.float32)})
    assert read(opt).keys() == before.keys()


@pytest.mark.parametrize("change", ["value", "shape", "dtype"])
def test_another_head_than_tied_embeddings_is_refused(opt: Path, change: str) -> None:
    head = load_file(opt / "model.safetensors")["model.decoder.embed_tokens.weight"].copy()
    head[-1, -1] += 1.0
    changed = {"value": head, "shape": head[:-1].copy(), "dtype": head.astype(np.float16)}[change]
    rewrite(opt, {"lm_head.weight": changed})
    assert refusal(opt) == (
        f"{opt}/model.safetensors: lm_head.weight differs from model.decoder.embed_tokens.weight, but "
        "tie_word_embeddings in config.json says that they are the same: set it to false to use this head, or remove "
        "the tensor"
    )


def test_a_multimodal_wrapper_has_its_head_compared_too(opt: Path) -> None:
    embed = load_file(opt / "model.safetensors")["model.decoder.embed_tokens.weight"]
    rewrite(opt, {"language_model.lm_head.weight": embed + 1})
    assert "language_model.lm_head.weight differs from" in refusal(opt)


def test_layers_that_predict_further_tokens_are_left_out(opt: Path) -> None:
    before, further = read(opt), "model.decoder.layers.2."
    rewrite(opt, {f"{further}fc1.weight": np.ones((4, 4), np.float32)})
    assert f"without the tensors {further}fc1.weight" in refusal(opt)
    rewrite(opt, {f"{further}eh_proj.weight": np.ones((4, 8), np.float32)})
    assert read(opt).keys() == before.keys()


def test_other_extras_are_refused(opt: Path) -> None:
    rewrite(opt, {EXTRA: np.ones(4, np.float32)})
    assert f"config.json describes a model without the tensors {EXTRA}; they belong" in refusal(opt)


def test_many_extras_are_counted(opt: Path) -> None:
    rewrite(opt, {f"extra.{i}": np.ones(4, np.float32) for i in range(9)})
    assert "without the tensors extra.0, extra.1, extra.2 and 6 more; they belong" in refusal(opt)


def test_missing_tensor_is_named(opt: Path) -> None:
    rewrite(opt, {"model.decoder.layers.1.fc1.bias": None})
    assert refusal(opt) == f"{opt}: the tensor model.decoder.layers.1.fc1.bias is missing from the safetensors files"


def test_missing_head_suggests_tying(sharded: Path) -> None:
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    rewrite(sharded, {"lm_head.weight": None}, index["weight_map"].pop("lm_head.weight"))
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "(or tie_word_embeddings in config.json should be true, or" in refusal(sharded)


def test_wrong_shape_is_named(opt: Path) -> None:
    rewrite(opt, {"model.decoder.layers.1.fc1.weight": np.zeros((64, 96), np.float32)})
    assert refusal(opt) == (
        f"{opt}/model.safetensors: model.decoder.layers.1.fc1.weight has shape [64, 96], but config.json means [96, 64]"
    )


@pytest.mark.parametrize(("dtype", "name"), [(np.int8, "I8"), (np.float64, "F64")])
def test_unexpected_dtype_is_named(opt: Path, dtype: Any, name: str) -> None:
    rewrite(opt, {"model.decoder.layers.1.fc1.bias": np.zeros(96, dtype)})
    assert refusal(opt).endswith(f"layers.1.fc1.bias has dtype {name}; supported: F32, BF16, F16")


@pytest.mark.parametrize("size", [0, 5, 100, -1])
def test_truncated_file_is_named(opt: Path, size: int) -> None:
    file = opt / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    assert refusal(opt).startswith(f"{file} is not a complete safetensors file: ")


def test_corrupt_header_is_named(opt: Path) -> None:
    file = opt / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:8] + b"garbage" + content[15:])
    assert refusal(opt).startswith(f"{file} is not a complete safetensors file: ")
    file.write_bytes(struct.pack("<Q", 2**40) + content[8:])
    assert refusal(opt).startswith(f"{file} is not a complete safetensors file: ")


@pytest.mark.parametrize("pickle", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "consolidated.00.pth"])
def test_pickles_are_refused(opt: Path, pickle: str) -> None:
    (opt / "model.safetensors").rename(opt / pickle)
    assert f"{opt} has its weights in {pickle}, a pickle, which can run code when it is opened" in refusal(opt)


def test_directory_without_weights(opt: Path) -> None:
    (opt / "model.safetensors").unlink()
    names = "neither model.safetensors nor model.safetensors.index.json nor other safetensors files"
    assert refusal(opt) == f"{opt} has no weights: {names}"


def change_index(directory: Path, **change: object) -> None:
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"] |= change
    path.write_text(json.dumps(index))


def test_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00002.safetensors").unlink()
    message = refusal(sharded)
    assert message.startswith(
        f"{sharded}/model-00002-of-00002.safetensors is missing, but model.safetensors.index.json"
    )


def test_index_that_is_wrong_about_a_shard(sharded: Path) -> None:
    change_index(sharded, **{"model.embed_tokens.weight": "model-00002-of-00002.safetensors"})
    message = refusal(sharded)
    assert message.startswith(
        f"{sharded}/model-00002-of-00002.safetensors: the tensor model.embed_tokens.weight is mis"
    )


@pytest.mark.parametrize("name", ["../other/model.safetensors", "/etc/hostname", "a/../../b.safetensors", "", "..\\x"])
def test_file_names_that_lead_out_are_refused(sharded: Path, name: str) -> None:
    change_index(sharded, **{"model.embed_tokens.weight": name})
    assert refusal(sharded) == (
        f"{sharded}: the file name {name!r} leads out of the directory; it must be a plain name"
    )


@pytest.mark.parametrize("weight_map", [None, [], {}, {"a": 1}])
def test_index_without_weight_map(sharded: Path, weight_map: object) -> None:
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert "index.json: weight_map must be an object from tensor names to file names" in refusal(sharded)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_link_out_of_the_directory_is_refused(opt: Path, tmp_path: Path, file: str) -> None:
    (opt / file).rename(tmp_path / "outside")
    (opt / file).symlink_to(tmp_path / "outside")
    assert refusal(opt).startswith(f"{opt}/{file} is a link out of the directory, to {tmp_path}/outside")


def test_link_within_the_directory_is_fine(opt: Path) -> None:
    (opt / "model.safetensors").rename(opt / "weights")
    (opt / "model.safetensors").symlink_to("weights")
    assert read(opt)


def hub_cache(opt: Path, root: Path) -> Path:
    """The checkpoint as the hub's cache keeps it: a snapshot of links to blobs."""
    repository = root / "models--org--opt"
    snapshot, blobs = repository / "snapshots" / "0123abcd", repository / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(opt.iterdir())):
        file.rename(blobs / str(number))
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", str(number)))
    return snapshot


def test_snapshot_of_the_hub_cache_is_read(opt: Path, tmp_path: Path) -> None:
    assert read(hub_cache(opt, tmp_path))


def test_snapshot_links_may_lead_to_its_own_blobs_only(opt: Path, tmp_path: Path) -> None:
    snapshot = hub_cache(opt, tmp_path)
    (snapshot.parent.parent / "blobs" / "1").rename(snapshot.parent.parent / "elsewhere")
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(Path("..", "..", "elsewhere"))
    assert "model.safetensors is a link out of the directory" in refusal(snapshot)


def test_a_directory_that_is_a_link_itself_is_fine(opt: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(opt)
    assert read(tmp_path / "link")


def test_matrices_of_zeros_are_warned_of(opt: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING")
    read(opt)
    assert not caplog.records, "biases are zero"
    names = [f"model.decoder.layers.{layer}.{part}.weight" for layer in (0, 1) for part in ("fc1", "fc2")]
    rewrite(opt, {name: 0 * load_file(opt / "model.safetensors")[name] for name in names})
    read(opt, "bfloat16")
    (record,) = caplog.records
    assert record.getMessage() == f"{opt}: all zero: {names[0]}, {names[2]}, {names[1]} and 1 more"
