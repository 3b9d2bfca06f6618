"""Check the lengths in the header of a GGUF file before the gguf package, which believes them, reads it. Host only.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from pathlib import Path
from struct import Struct
from typing import BinaryIO

MOST_VALUES = 2**16
"""Most metadata, and most tensors, of a file."""
MOST_ENTRIES = 2**21
"""Most entries of all its arrays together; the largest vocabularies have 600,000 tokens and merges, and scores."""
MOST_DEPTH = 4
"""Most arrays that are inside each other."""
MOST_AXES = 8
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a number, by its type."""
_STRING, _ARRAY = 8, 9
_U32, _U64 = Struct("<I"), Struct("<Q")


class BadHeaderError(ValueError):
    """A header says what its file cannot have."""


def check_header(path: Path) -> None:
    """Raise BadHeaderError for a header whose lengths lead out of the file, or are absurd; OSError.

    Nothing is kept of what is read. A file of another byte order is left to the reader.
    """
    with path.open("rb") as file:
        _Walk(file, path.stat().st_size).all()


class _Walk:
    """One walk through a header; ``_left``: bytes of the file behind the place that it has come to."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._left = size
        self._entries = 0

    def all(self) -> None:
        self._skip(4)  # the magic number
        if self._number(_U32) & 0xFFFF == 0:
            return  # another byte order
        tensors, values = self._number(_U64), self._number(_U64)
        for what, count in (("tensors", tensors), ("metadata", values)):
            if count > MOST_VALUES:
                raise BadHeaderError(f"it says that it has {count} {what}; at most {MOST_VALUES} are read")
        for _ in range(values):
            self._string()
            self._value(self._number(_U32), depth=0)
        for _ in range(tensors):
            self._string()
            axes = self._number(_U32)
            if axes > MOST_AXES:
                raise BadHeaderError(f"it says that a tensor has {axes} axes")
            self._skip(axes * 8 + 4 + 8)  # sizes, type and place

    def _value(self, kind: int, depth: int) -> None:
        if kind in _SIZES:
            self._skip(_SIZES[kind])
        elif kind == _STRING:
            self._string()
        elif kind == _ARRAY:
            self._array(depth + 1)
        else:
            raise BadHeaderError(f"it has a value of type {kind}, which is not known")

    def _array(self, depth: int) -> None:
        if depth > MOST_DEPTH:
            raise BadHeaderError(f"its arrays are more than {MOST_DEPTH} deep")
        kind, count = self._number(_U32), self._number(_U64)
        self._entries += count
        if self._entries > MOST_ENTRIES:
            raise BadHeaderError(f"its arrays have {self._entries} entries; at most {MOST_ENTRIES} are read")
        if kind in _SIZES:
            self._skip(count * _SIZES[kind])
            return
        for _ in range(count):
            self._value(kind, depth)

    def _string(self) -> None:
        self._skip(self._number(_U64))

    def _number(self, form: Struct) -> int:
        self._take(form.size)
        return int(form.unpack(self._file.read(form.size))[0])

    def _skip(self, count: int) -> None:
        self._take(count)
        if count > 2**12:
            self._file.seek(count, 1)
        else:
            self._file.read(count)  # sooner than a seek, which gives up what is buffered

    def _take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise BadHeaderError(f"a length in its header leads {-self._left} bytes out of the file")
