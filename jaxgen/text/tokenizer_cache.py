"""Keep tokenizers that transformers made, so that the next start need not import it (about a second). Host only."""

import hashlib
import logging
from importlib.metadata import version
from pathlib import Path

from jaxgen.core.cache_dirs import write_file
from jaxgen.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_SUFFIXES = {".json", ".jinja", ".model", ".txt"}


def load_tokenizer(directory: Path, cache: Path | None) -> Tokenizer:
    """Load the tokenizer of a model directory, from a copy in the folder ``cache`` (None: no copies) if there is one.

    The copy is used while the directory's text files, transformers and tokenizers are the same. Raises ConfigError.
    """
    if cache is None:
        return Tokenizer.from_directory(directory)
    kept = cache / f"{text_files_digest(directory)}.json"
    if kept.is_file():
        try:
            return Tokenizer.from_json(kept.read_text(encoding="utf-8"))
        except Exception as error:  # the tokenizers library raises a bare Exception
            logger.warning("the kept tokenizer %s is damaged and made anew: %s", kept, error)
    tokenizer = Tokenizer.from_directory(directory)
    text = tokenizer.to_json()
    if text is not None:
        write_file(kept, text)
    return tokenizer


def text_files_digest(directory: Path) -> str:
    """Return the SHA-256 of all files that a tokenizer is made from, and of the versions of what makes it."""
    digest = hashlib.sha256()
    for library in ("transformers", "tokenizers"):
        digest.update(f"{library} {version(library)}\0".encode())
    for path in sorted(directory.iterdir()):
        if path.suffix in _SUFFIXES and path.is_file():
            content = path.read_bytes()
            digest.update(f"{path.name} {len(content)}\0".encode() + content)
    return digest.hexdigest()
