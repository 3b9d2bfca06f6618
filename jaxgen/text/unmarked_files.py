"""Give libraries a tokenizer's files as they can read them: none begins with a byte order mark. Host only, no jax."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from jaxgen.files.text_files import LONGEST_MARK, check_not_pointer, mark_of, read_text

_TEXTS = {".json", ".jinja", ".txt", ".tiktoken"}
_OTHERS = {".model"}
"""Suffixes of files that are not text."""


@contextmanager
def unmarked(directory: Path) -> Iterator[Path]:
    """Give the directory, or one that has copies of its text files without byte order marks in place of such with them.

    Raises ConfigError for a pointer of Git LFS.
    """
    files = [path for path in directory.iterdir() if path.suffix in _TEXTS | _OTHERS and path.is_file()]
    for path in files:
        check_not_pointer(path)
    marked = {path.name for path in files if path.suffix in _TEXTS and _has_mark(path)}
    if not marked:
        yield directory
        return
    with TemporaryDirectory(prefix="jaxgen-tokenizer-") as name:
        for path in files:
            copy = Path(name, path.name)
            if path.name in marked:
                copy.write_text(read_text(path), encoding="utf-8")
            else:
                copy.symlink_to(path.resolve())
        yield Path(name)


def _has_mark(path: Path) -> bool:
    with path.open("rb") as file:
        return bool(mark_of(file.read(LONGEST_MARK))[0])
