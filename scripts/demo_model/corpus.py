"""The text that ships with Python, split by file, and the byte-level BPE trained on it."""

import importlib
import sysconfig
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
VOCAB_SIZE = 2048
# Tests repeat themselves, the encodings are tables of numbers, idlelib and lib2to3 carry tests and grammar tables.
EXCLUDED_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "encodings", "lib2to3", "pydoc_data"})
HELD_OUT_OF = 20
"""One file in this many is held out."""


@dataclass(frozen=True)
class Corpus:
    """Whole documents: sources of the standard library, and the topics of the language reference (``help()``)."""

    train: list[str]
    held_out: list[str]


def load_corpus() -> Corpus:
    """Read the running interpreter's own library, in sorted order; a file's path alone decides its side."""
    root = Path(sysconfig.get_paths()["stdlib"])
    documents = {f"topics/{name}": text for name, text in importlib.import_module("pydoc_data.topics").topics.items()}
    for path in root.rglob("*.py"):
        relative = path.relative_to(root)
        if EXCLUDED_FOLDERS.isdisjoint(relative.parts) and not path.name.startswith("_sysconfigdata"):
            documents[relative.as_posix()] = path.read_text(encoding="utf-8", errors="replace")
    names = sorted(name for name, text in documents.items() if text.strip())
    held_out = {name for name in names if zlib.crc32(name.encode()) % HELD_OUT_OF == 0}
    return Corpus(
        train=[documents[name] for name in names if name not in held_out],
        held_out=[documents[name] for name in names if name in held_out],
    )


def train_tokenizer(documents: list[str]) -> Tokenizer:
    """Byte-level BPE in which every digit is its own token, so that a number is copied digit by digit."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def encode_documents(tokenizer: Tokenizer, documents: list[str]) -> NDArray[np.int32]:
    """All documents as one stream of ids, each closed by the end-of-text token."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    streams = [np.array([*encoding.ids, end], np.int32) for encoding in tokenizer.encode_batch(documents)]
    return np.concatenate(streams)


def statement_starts(tokenizer: Tokenizer, stream: NDArray[np.int32]) -> NDArray[np.int64]:
    """Places in ``stream`` where a line begins with a letter or a decorator, in the first column."""
    ends, begins = np.zeros((2, tokenizer.get_vocab_size()), bool)
    for token, index in tokenizer.get_vocab().items():
        # Byte-level BPE writes the newline as this letter.
        ends[index] = token.endswith("\u010a")
        begins[index] = token[0] == "@" or (token[0].isascii() and token[0].isalpha())
    return np.flatnonzero(ends[stream[:-1]] & begins[stream[1:]]) + 1
