"""Read text files as people's tools leave them: with a byte order mark, or as a pointer of Git LFS. Host only."""

import codecs
from pathlib import Path

from jaxgen.core.errors import ConfigError

_POINTERS = (b"version https://git-lfs.github.com/spec/", b"version https://hawser.github.com/spec/")
"""How a file begins that Git LFS has left in place of a large one; the second is its name before.

https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
"""
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",  # before UTF-16, whose mark is the beginning of this one
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_PAGES = (b"<!doctype html", b"<html")
"""How a web page begins, which a download may leave in place of a file."""
_MARK = "\ufeff"
"""A mark as a character: tools write some files with two."""
LONGEST_MARK = max(map(len, _MARKS))


def read_text(path: Path) -> str:
    """Return the text of a file without its byte order mark: UTF-8, or what the mark says.

    Raises OSError, UnicodeDecodeError, and ConfigError for a pointer of Git LFS.
    """
    check_not_pointer(path)
    return decoded(path.read_bytes())


def decoded(content: bytes) -> str:
    """Return a file's content as text, without its byte order mark. Raises UnicodeDecodeError."""
    mark, encoding = mark_of(content)
    return content[len(mark) :].decode(encoding).lstrip(_MARK).replace("\r\n", "\n").replace("\r", "\n")


def mark_of(beginning: bytes) -> tuple[bytes, str]:
    """Return the byte order mark with which a file begins, and the encoding that it means; no mark means UTF-8."""
    matches = ((mark, encoding) for mark, encoding in _MARKS.items() if beginning.startswith(mark))
    return next(matches, (b"", "utf-8"))


def check_not_pointer(path: Path) -> None:
    """Raise ConfigError for a pointer that Git LFS has left in place of a file, and for a web page. Raises OSError."""
    with path.open("rb") as file:
        beginning = file.read(max(map(len, _POINTERS))).lower()
    if beginning.startswith(_POINTERS):
        raise ConfigError(f"{path} is a Git LFS pointer: run git lfs pull")
    if beginning.startswith(_PAGES):
        raise ConfigError(f"{path} is a web page in place of the file: download it again")
