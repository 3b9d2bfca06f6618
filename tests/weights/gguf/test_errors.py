"""GGUF files that cannot be converted: damaged, unknown and unsupported ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from jaxgen.core.errors import ConfigError
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.gguf import model as gguf
from jaxgen.weights.huggingface.config import read_model_config
from tests.support.conversions import run
from tests.support.gguf_files import F32, byte_level, write
from tests.support.goldens import GOLDENS
from tests.support.tiny_tokenizers import byte_level as byte_level_tokenizer

YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 32,
    "rope.scaling.yarn_beta_fast": 2.0,
    "rope.scaling.yarn_beta_slow": 0.25,
}


def damaged(path: Path, change: Callable[[bytes], bytes]) -> Path:
    path.write_bytes(change(path.read_bytes()))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-40], "cut off, damaged, or has a type not known"),
        (lambda data: data[:2000], "cut off, damaged, or has a type not known"),
        (lambda data: data[:5], "cut off, damaged, or has a type not known"),
        (lambda data: b"PK\3\4" + data[4:], "is not a GGUF file: it begins with b'PK"),
        (lambda data: b"", "is not a GGUF file: it begins with b''"),
    ],
)
def test_damaged_files(change: Callable[[bytes], bytes], message: str, tmp_path: Path) -> None:
    file = damaged(write(tmp_path / "model.gguf", GOLDENS / "llama", "llama"), change)
    with pytest.raises(ConfigError, match=message) as caught:
        run(file, tmp_path / "dest")
    assert str(caught.value).startswith(str(file))
    assert not (tmp_path / "dest").exists()


def test_a_type_that_nobody_knows(tmp_path: Path) -> None:
    """And one that the gguf package knows, but cannot dequantise."""
    file = write(tmp_path / "model.gguf", GOLDENS / "llama", "llama")
    name = b"blk.1.ffn_up.weight"
    at = file.read_bytes().index(name) + len(name) + 4 + 16
    for kind, message in (
        (200, r"200.* is not a valid"),
        (Kind.I32, "blk.1.ffn_up.weight is of type I32, which cannot"),
    ):
        data = bytearray(file.read_bytes())
        data[at : at + 4] = int(kind).to_bytes(4, "little")
        file.write_bytes(data)
        with pytest.raises(ConfigError, match=message):
            run(file, tmp_path / "dest")


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("mamba", {}, "general.architecture is 'mamba', which has layers with a recurrent state"),
        ("llama", {"without": ("blk.1.ffn_up.weight",)}, "the tensor blk.1.ffn_up.weight is missing"),
        ("llama", {"without": ("token_embd.weight",)}, "the tensor token_embd.weight is missing"),
        ("llama", {"more": {"blk.0.extra.weight": np.ones(3, np.float32)}}, "without the tensors blk.0.extra.weight"),
        ("llama", {"metadata": {"block_count": None}}, "llama: block_count is missing"),
        ("llama", {"metadata": {"feed_forward_length": 95}}, r"blk.0.ffn_gate.weight has shape \[96, 64\], but"),
        ("qwen2", {"metadata": {"expert_count": 8}}, "expert_count 8 is not supported, only 0: models of this arch"),
        ("llama", {"metadata": {"expert_count": 8}}, "expert_used_count is missing; it must be a positive integer"),
        ("llama", {"metadata": {"attention.causal": False}}, "attention in both directions is not computed: take a"),
        ("llama", {"metadata": {"logit_scale": 0.5}}, "logit_scale is 0.5, which is not supported"),
        ("llama", {"metadata": {"rope.dimension_count": 8}}, "rope.dimension_count must be the size of a head, 16"),
        ("llama", {"metadata": YARN | {"rope.scaling.attn_factor": 1.3}}, "attn_factor is not supported with yarn"),
        ("llama", {"metadata": {"rope.scaling.type": "longrope"}}, "the tensor rope_factors_long.weight is missing"),
        ("llama", {"metadata": {"attention.head_count_kv": [2, 1]}}, "llama.attention.head_count_kv differs by layer"),
        ("llama", {"metadata": {"attention.head_count_kv": [2, 0]}}, "llama.attention.head_count_kv differs by layer"),
        ("llama", {"metadata": {"general.type": "adapter"}}, "the file is a LoRA adapter: merge it into its model"),
        (
            "llama",
            {"more": {"blk.0.attn_q.weight.lora_a": np.ones((2, 2), np.float32)}},
            "model.gguf is a LoRA adapter: merge",
        ),
        ("llama", {"metadata": {"general.type": "mmproj"}}, "the part of a model that reads images"),
        ("llama", {"vocabulary": {"tokens": ["a"], "pre": "none"}}, "tokenizer.ggml.pre is 'none'; supported: default"),
        ("llama", {"vocabulary": {"tokens": ["a"], "model": "bert"}}, "tokenizer.ggml.model is 'bert'; supported:"),
        ("llama", {"vocabulary": {"tokens": ["a"] * 2, "pre": "gpt-2"}}, "has 'a' twice, as 0 and as 1"),
        ("llama", {"vocabulary": {"tokens": ["a"], "pre": "gpt-2", "merges": ["a b"]}}, "makes no tokenizer: "),
        ("llama", {"vocabulary": byte_level(byte_level_tokenizer(), "gpt-2")}, "but the embedding has 256 rows"),
        ("llama", {"metadata": {"tokenizer.ggml.eos_token_id": 256}}, "is 256, which is not in the vocabulary"),
    ],
)
def test_what_cannot_be_converted(family: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = write(tmp_path / "model.gguf", GOLDENS / "llama", family, **options)
    with pytest.raises(ConfigError, match=message) as caught:
        run(file, tmp_path / "dest")
    assert str(caught.value).startswith(str(file))
    assert not (tmp_path / "dest").exists()


def test_a_list_of_equal_values_by_layer_is_that_value(tmp_path: Path) -> None:
    equal = {"attention.head_count_kv": [2, 2], "feed_forward_length": [96, 96], "attention.head_count": [4, 4]}
    file = write(tmp_path / "model.gguf", GOLDENS / "llama", "llama", metadata=equal)
    with gguf.opened(file) as (directory, _):
        assert read_model_config(ModelFiles(directory)).num_kv_heads == 2


def test_a_mixture_of_before_stacked_experts_is_told(tmp_path: Path) -> None:
    more = {f"blk.0.ffn_{name}.0.weight": np.ones((3, 64), np.float32) for name in ("gate", "up", "down")}
    experts = {"expert_count": 8, "expert_used_count": 2}
    file = write(tmp_path / "model.gguf", GOLDENS / "llama", "llama", metadata=experts, more=more)
    with pytest.raises(ConfigError, match=r"_exps.weight is missing: each expert has a tensor of its own, as in files"):
        run(file, tmp_path / "dest")


def test_destinations_and_missing_files(tmp_path: Path) -> None:
    file = write(tmp_path / "model.gguf", GOLDENS / "llama", "llama", kind=F32)
    (tmp_path / "dest").mkdir()
    (tmp_path / "dest" / "mine").write_text("mine")
    with pytest.raises(ConfigError, match="dest exists already; choose another destination"):
        run(file, tmp_path / "dest")
    with pytest.raises(ConfigError, match=r"^SOURCE .*other\.gguf: there is no such file"):
        run(tmp_path / "other.gguf", tmp_path / "new")
