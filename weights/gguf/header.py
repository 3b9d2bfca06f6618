"""Check the lengths in the header of a GGUF file, and read its long arrays. Host only.

The gguf package believes the lengths, so they are checked before it reads the file. For a long array the package makes
some objects per entry, which takes seconds for a large vocabulary.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO

import numpy as np

MOST_VALUES = 2**16
"""Most metadata, and most tensors, of a file."""
MOST_ENTRIES = 2**21
"""Most entries of all its arrays together; the largest vocabularies have 600,000 tokens and merges, and scores."""
MOST_DEPTH = 4
"""Most arrays that are inside each other."""
MOST_AXES = 8
SHORT = 256
"""Entries of an array that the package reads with the rest of the metadata. Vocabularies are longer."""
_NUMBERS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
_SIZES = {kind: np.dtype(name).itemsize for kind, name in _NUMBERS.items()}
"""Numpy's name of the numbers of a type, and their bytes."""
_STRING, _ARRAY = 8, 9
_U32, _U64 = Struct("<I"), Struct("<Q")


class BadHeaderError(ValueError):
    """A header says what its file cannot have. ``GgufFile`` and the fetching of headers catch it."""


@dataclass(frozen=True, slots=True)
class LongArray:
    """An array of numbers or strings in a header: ``size`` bytes from ``start`` on, of which its ``count`` entries are
    the last. ``kind``: of these."""

    start: int
    size: int
    kind: int
    count: int

    def read(self, path: Path) -> list[Any]:
        """Return the entries. Raises UnicodeDecodeError."""
        with path.open("rb") as file:
            file.seek(self.start)
            data = memoryview(file.read(self.size))[_U32.size + _U64.size :]
        if self.kind in _NUMBERS:
            numbers: list[Any] = np.frombuffer(data, _NUMBERS[self.kind], self.count).tolist()
            return numbers
        return list(self._strings(data))

    def _strings(self, data: memoryview) -> Iterator[str]:
        start = 0
        for _ in range(self.count):
            (length,) = _U64.unpack_from(data, start)
            start += _U64.size
            yield str(data[start : start + length], "utf-8")
            start += length


def check_header(path: Path) -> dict[int, LongArray]:
    """Return the arrays of more than SHORT entries in the header, by where they start.

    Raises BadHeaderError for a header whose lengths lead out of the file, or are absurd; OSError. Nothing else is kept
    of what is read. A file of another byte order is left to the reader.
    """
    with path.open("rb") as file:
        walk = _Walk(file, path.stat().st_size)
        walk.all()
    return walk.long


class _Walk:
    """One walk through a header; ``_left``: bytes of the file behind the place that it has come to."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._left = size
        self._entries = 0
        self.long: dict[int, LongArray] = {}

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
        start = self._size - self._left
        kind, count = self._number(_U32), self._number(_U64)
        self._entries += count
        if self._entries > MOST_ENTRIES:
            raise BadHeaderError(f"its arrays have {self._entries} entries; at most {MOST_ENTRIES} are read")
        if kind in _SIZES:
            self._skip(count * _SIZES[kind])
        else:
            for _ in range(count):
                self._value(kind, depth)
        if depth == 1 and count > SHORT and kind != _ARRAY:
            self.long[start] = LongArray(start, self._size - self._left - start, kind, count)

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
