"""Look for the files that a directory's tokenizer is made of. Host only, no jax."""

from importlib.util import find_spec
from pathlib import Path

from jaxgen.core.errors import ConfigError

FAST = "tokenizer.json"
SENTENCE_PIECE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
LIBRARY = "sentencepiece"
"""The module, and the package, that encodes by such a model."""
OTHERS = ("vocab.json", "vocab.txt", "tiktoken.model", "*.tiktoken")
"""Files, one of which transformers makes a tokenizer of where there is no tokenizer.json."""
_TEKKEN = "tekken.json"
REMEDY = f"add its {FAST}, or name the directory or hub id of a tokenizer with --tokenizer"


def check_tokenizer_files(directory: Path) -> None:
    """Raise ConfigError unless there are files that a tokenizer can be made of, and what reads them is installed."""
    if (directory / FAST).exists():
        return
    pieces = next((name for name in SENTENCE_PIECE if (directory / name).exists()), None)
    others = any(any(directory.glob(name)) for name in OTHERS)
    if pieces is not None and not others:
        check_library(directory / pieces)
    if pieces is None and not others:
        tekken = (directory / _TEKKEN).exists()
        what = f"only {_TEKKEN}, Mistral's own form, which is not read" if tekken else "no tokenizer"
        raise ConfigError(f"{directory} has {what}: {REMEDY}")


def check_library(model: Path) -> None:
    """Raise ConfigError unless the library that encodes by a SentencePiece model is installed."""
    if find_spec(LIBRARY) is None:
        raise ConfigError(
            f"the tokenizer in {model.parent} is a SentencePiece model, {model.name}, which the library {LIBRARY} "
            f"reads: pip install {LIBRARY}, or {REMEDY}"
        )
