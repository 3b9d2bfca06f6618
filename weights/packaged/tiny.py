"""Make a tiny seeded Llama checkpoint, which the server runs when it has no model. Host only, no jax.

Its tokenizer has one token per byte and a few common words, so it can encode any text; its weights are noise.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from jaxgen.weights.families.parameters import parameters
from jaxgen.weights.files.file_names import CONFIG, GENERATION_CONFIG
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.files.weight_files import SINGLE
from jaxgen.weights.huggingface.config import read_model_config

BOS, EOS = "<|begin|>", "<|end|>"
_VOCAB_SIZE = 384
_TEXT = """The engine computes a step at a time. Every step has the same number of tokens: first one for each sequence
that is being written, then pieces of the prompts that are still being read. The keys and values of earlier tokens are
kept in blocks, and when there are no more blocks a sequence gives its own back and waits until there are. A server
answers many people at once, and each of them should see the same words that they would have seen alone."""


_TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "float32",
    "vocab_size": _VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def make_tiny_checkpoint(directory: Path, *, seed: int = 0, **config: object) -> None:
    """Write a Llama checkpoint of two layers, hidden size 64 and context 2048 into ``directory``, in float32.

    ``config`` replaces values of config.json, also with larger ones; further tokens of a larger vocabulary are words.
    The same seed gives the same bytes. Existing files are overwritten.
    """
    make_checkpoint({**_TINY, **config}, directory, seed=seed)


def make_checkpoint(config: Mapping[str, object], directory: Path, *, seed: int = 0) -> None:
    """Write a checkpoint of random weights. ``config``: the fields of config.json, and otherwise as for a tiny one.

    The ids of the first and the last token are the tokenizer's, where ``config`` has none.
    """
    _make_outline(config, directory)
    _write_weights(directory, seed)


def make_tiny_outline(directory: Path, **config: object) -> None:
    """Write the files of ``make_tiny_checkpoint`` without the weights: enough for --load-format dummy."""
    _make_outline({**_TINY, **config}, directory)


def _make_outline(config: Mapping[str, object], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    tokenizer.add_tokens([f" word{token}" for token in range(_VOCAB_SIZE, int(str(config["vocab_size"])))])
    bos, eos = tokenizer.token_to_id(BOS), tokenizer.token_to_id(EOS)
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": EOS,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 2048,
        },
    )
    _write_json(directory / GENERATION_CONFIG, {"bos_token_id": bos, "eos_token_id": eos})
    _write_json(directory / CONFIG, {"bos_token_id": bos, "eos_token_id": eos, **config})


def _tokenizer() -> Tokenizer:
    """Train a byte-level BPE: the special tokens, the 256 bytes, and merges learnt from the text above."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=_VOCAB_SIZE,
        special_tokens=[AddedToken(BOS, special=True), AddedToken(EOS, special=True)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    return tokenizer


def _write_weights(directory: Path, seed: int) -> None:
    """Write noise that neither vanishes nor explodes in the layers: ones for norms, rows of unit expected length."""
    rng = np.random.default_rng(seed)
    tensors = {}
    config = read_model_config(ModelFiles(directory))
    dtype = np.dtype(getattr(ml_dtypes, config.dtype, config.dtype))
    for parameter in parameters(config):
        for source, _ in parameter.pieces():
            noise = rng.standard_normal(source.shape, np.float32) / np.float32(np.sqrt(source.shape[-1]))
            values = np.ones(source.shape) if len(source.shape) == 1 else noise
            tensors[source.name] = values.astype(dtype)
    save_file(tensors, directory / SINGLE, metadata={"format": "pt"})


def _write_json(path: Path, data: Mapping[str, object]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
