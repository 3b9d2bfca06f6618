"""Keep tokenizers that transformers made, so that the next start need not import it (about a second). Host only."""

import hashlib
import logging
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from jaxgen.core.errors import ConfigError, one_line
from jaxgen.files.cache_files import find, keep
from jaxgen.files.digested_files import DigestedFiles
from jaxgen.files.text_files import read_text
from jaxgen.text.sentence_pieces import read_sentence_pieces
from jaxgen.text.token_lengths import VocabularyFacts
from jaxgen.text.tokenizer import Tokenizer
from jaxgen.text.tokenizer_files import FAST, LIBRARY, check_tokenizer_files

logger = logging.getLogger(__name__)

_AGAIN = "the tokenizer is made again from the model's files"
_SUFFIXES = {".json", ".jinja", ".model", ".tiktoken", ".txt"}


def load_tokenizer(directory: Path, cache: Path | None, files: DigestedFiles | None = None) -> Tokenizer:
    """Load the tokenizer of a model directory, from a copy in the folder ``cache`` (None: no copies) if there is one.

    A copy has the facts of the vocabulary in its first line. It is used while the directory's text files, transformers
    and tokenizers are the same. ``files``: those text files; None: their digest is taken here. Raises ConfigError.
    """
    if cache is None:
        return Tokenizer.from_directory(directory)
    files = text_files(directory) if files is None else files
    path = cache / f"{files.digest}.json"
    if (text := find(path, _AGAIN)) is not None:
        try:
            facts, _, text = text.partition("\n")
            return Tokenizer.from_json(text, VocabularyFacts.read(facts))
        except Exception as error:  # the tokenizers library raises a bare Exception
            logger.warning("%s is not a valid tokenizer (%s): %s", path, error, _AGAIN)
    tokenizer = Tokenizer.from_directory(directory)
    files.check()
    text = tokenizer.to_json() if tokenizer.is_json else None
    if text is not None:
        keep(path, f"{tokenizer.facts.to_json()}\n{text}")
    return tokenizer


def tokenizer_problem(directory: Path) -> str:
    """Return why the tokenizer of a model directory cannot be loaded, in one line; empty: no reason is known.

    transformers is not asked, because it takes a second to import. Without a tokenizer.json, or with an empty one as
    in the outline of a model on the hub, only the names of the files are checked.
    """
    fast = directory / FAST
    try:
        check_tokenizer_files(directory)
        if fast.exists() and fast.stat().st_size:
            Tokenizer.from_json(read_text(fast))
        else:
            read_sentence_pieces(directory)
    except ConfigError as error:
        return one_line(str(error))
    except Exception as error:  # the tokenizers library raises a bare Exception
        return one_line(f"cannot load a tokenizer from {directory}: {error}")
    return ""


def text_files(directory: Path) -> DigestedFiles:
    """Return all files that a tokenizer is made from. Raises OSError."""
    return DigestedFiles.of(f"the text files in {directory}", partial(_digest, directory))


def _digest(directory: Path) -> str:
    """Return the SHA-256 of all files that a tokenizer is made from, and of the versions of what makes it."""
    digest = hashlib.sha256()
    encoder = () if (directory / FAST).exists() or find_spec(LIBRARY) is None else (LIBRARY,)
    for library in ("transformers", "tokenizers", *encoder):
        digest.update(f"{library} {version(library)}\0".encode())
    for path in sorted(directory.iterdir()):
        if path.suffix in _SUFFIXES and path.is_file():
            content = path.read_bytes()
            digest.update(f"{path.name} {len(content)}\0".encode() + content)
    return digest.hexdigest()
