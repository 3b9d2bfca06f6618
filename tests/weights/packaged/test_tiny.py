"""The tiny checkpoint made on the spot."""

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.huggingface.config import read_eos_token_ids, read_model_config
from jaxgen.weights.packaged.tiny import EOS, make_tiny_checkpoint
from tests.support.conversions import host_arrays


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_the_seed_alone_decides_every_byte(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        make_tiny_checkpoint(tmp_path / name, seed=seed)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    different = {
        name for name, content in contents(tmp_path / "a").items() if contents(tmp_path / "c")[name] != content
    }
    assert different == {"model.safetensors"}


def test_size(tmp_path: Path) -> None:
    make_tiny_checkpoint(tmp_path)
    config = read_model_config(ModelFiles(tmp_path))
    assert isinstance(config, DecoderConfig)
    assert (config.vocab_size, config.hidden_size, config.num_layers, config.max_position) == (384, 64, 2, 2048)
    assert (config.num_heads, config.num_kv_heads, config.dtype) == (4, 2, "float32")
    for path, array in host_arrays(tmp_path, config).items():
        values = array.astype(np.float32)
        assert 0.05 < values.std() < 0.2 if "norm" not in path else (values == 1).all(), path


def test_transformers_loads_the_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    make_tiny_checkpoint(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert len(tokenizer) == read_model_config(ModelFiles(tmp_path)).vocab_size
    assert {tokenizer.eos_token_id} == read_eos_token_ids(tmp_path)
    assert tokenizer.decode([tokenizer.eos_token_id], skip_special_tokens=True) == ""
    for text in ("Hello, world!", "Grüße, 你好 🙂\r\n\t  x", "\x00\x7f", "the keys and values are kept in blocks"):
        tokens = tokenizer(text)["input_ids"]
        assert tokenizer.decode(tokens) == text
        assert tokenizer.convert_tokens_to_ids(EOS) not in tokens
    assert len(tokenizer("the keys and values are kept in blocks")["input_ids"]) < 20
