"""Files that llama.cpp reads have the checkpoint's weights, as jaxgen's own reader of such files finds them."""

import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from jaxgen.weights.load import load_model_config
from jaxgen.weights.packaged.tiny import make_checkpoint
from scripts.loads.shapes import CONFIGS
from scripts.peers import llama_convert
from tests.support.conversions import bits_of, run

SMALL = {
    "vocab_size": 400,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "layer_types": None,
    "dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": 1,
}


@pytest.mark.parametrize("shape", ["88m", "qwen3-0.6b", "gemma-3-270m"])
def test_a_file_has_the_checkpoints_weights(shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, file = tmp_path / "source", tmp_path / "model.gguf"
    make_checkpoint(CONFIGS[shape] | SMALL | ({"query_pre_attn_scalar": 16} if "gemma" in shape else {}), source)
    monkeypatch.setattr(sys, "argv", ["llama_convert", str(source), str(file)])
    llama_convert.main()
    converted = run(file, tmp_path / "converted")
    assert bits_of(converted, "float32") == bits_of(source, "float32")
    assert load_model_config(converted, "float32") == load_model_config(source, "float32")


def test_a_file_with_the_checkpoints_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, file = tmp_path / "source", tmp_path / "model.gguf"
    make_checkpoint(CONFIGS["88m"] | SMALL, source)
    monkeypatch.setattr(sys, "argv", ["llama_convert", str(source), str(file), "qwen2"])
    llama_convert.main()
    ours, theirs = (load_tokenizer(path) for path in (source, run(file, tmp_path / "converted")))
    text = "the engine computes 2026 steps; \u00fc"
    assert theirs.encode(text).ids == ours.encode(text).ids
    assert theirs.decode(theirs.encode(text).ids) == text


def load_tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(directory / "tokenizer.json"))
