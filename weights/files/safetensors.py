"""Read the safetensors files of a Hugging Face directory: headers, and tensors without copies. Host only, no jax.

A file begins with the length of its header, 8 bytes in little endian, and the header: JSON with the dtype, the shape
and the place of each tensor. https://huggingface.co/docs/safetensors/index#format
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from jaxgen.core.errors import ConfigError
from jaxgen.files.text_files import check_not_pointer
from jaxgen.weights.files.members import member
from jaxgen.weights.files.weight_files import WeightFiles

Array = npt.NDArray[np.generic]
"""A tensor, or a part of one, in host memory."""
LENGTH_BYTES = 8
_MOST_HEADER_BYTES, _MOST_COMMAS = 2**25, 2**20
"""Bounds of a header, and so of the memory that it takes: those of 180,000 tensors."""
_SMALL = 1 << 16
"""Bytes of tensors that are read: a page fault of a mapped file would read more around them."""
_WRAPPINGS = ("base_model.model.", "_orig_mod.", "module.")
_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
"""Of the tensors that can be read; what has another dtype can be left out."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a file: its dtype as safetensors names it, its shape, and where its bytes are in the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    num_bytes: int


class SafetensorsFiles:
    """The tensors of all safetensors files of a directory, by name; ``ModelFiles`` opens it.

    ``headers``: those of the ``files``, by file. Raises ConfigError for a tensor that is in two of them, or in none.
    """

    def __init__(self, directory: Path, files: WeightFiles, headers: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.directory = directory
        file_of = files.listed or _file_of(directory, headers)
        cut = len(wrapping_of(file_of))
        self._file_of = {tensor[cut:]: name for tensor, name in file_of.items()}
        self._headers = {
            name: {tensor[cut:]: header for tensor, header in tensors.items()} for name, tensors in headers.items()
        }
        self._index = files.index
        self._maps: dict[str, np.memmap[Any, np.dtype[np.uint8]]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def file_of(self, name: str) -> Path:
        """Return the path of the file that has a tensor."""
        return self.directory / self._file_of[name]

    def header(self, name: str) -> Tensor:
        """Return what a tensor is. Raises ConfigError for one that is not there."""
        if name not in self._file_of:
            raise ConfigError(f"{self.directory}: the tensor {name} is missing from the safetensors files")
        header = self._headers[self._file_of[name]].get(name)
        if header is None:
            raise ConfigError(f"{self.file_of(name)}: the tensor {name} is missing, but {self._index} says it is there")
        return header

    def read(self, name: str) -> Array:
        """Return a tensor, a large one as a view of its file. Raises ConfigError for one that is not there."""
        header, file = self.header(name), self._file_of[name]
        dtype = _DTYPES[header.dtype]
        if header.num_bytes <= _SMALL:
            count = prod(header.shape)
            return np.fromfile(member(self.directory, file), dtype, count, offset=header.begin).reshape(header.shape)
        if file not in self._maps:
            self._maps[file] = np.memmap(member(self.directory, file), np.uint8, "r")
        stored = self._maps[file][header.begin : header.begin + header.num_bytes]
        array: Array = np.asarray(stored).view(dtype).reshape(header.shape)
        return array


def _file_of(directory: Path, headers: Mapping[str, Mapping[str, Tensor]]) -> dict[str, str]:
    """Return the file of each tensor. Raises ConfigError for a tensor that is in two files."""
    result: dict[str, str] = {}
    for name, tensors in headers.items():
        for tensor in tensors:
            if tensor in result:
                raise ConfigError(
                    f"{directory}: {tensor} is in {result[tensor]} and in {name}, and no index says which is the "
                    "model's: keep the files of one model in the directory"
                )
            result[tensor] = name
    return result


def wrapping_of(names: Iterable[str]) -> str:
    """Return what peft, torch.compile or data parallelism wrote before the names of all tensors."""
    rest, cut = list(names), ""
    while rest and (prefix := next((w for w in _WRAPPINGS if all(name.startswith(w) for name in rest)), "")):
        cut += prefix
        rest = [name.removeprefix(prefix) for name in rest]
    return cut


def read_header(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name. Raises ConfigError unless the file ends where they end."""
    try:
        check_not_pointer(path)
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if size < LENGTH_BYTES or length > size - LENGTH_BYTES:
                raise _damaged(path, f"a header of {length} bytes does not fit in its {size}")
            if length > _MOST_HEADER_BYTES:
                raise _damaged(path, f"its header has {length} bytes, and may have {_MOST_HEADER_BYTES}")
            text = file.read(length)
            if text.count(b",") > _MOST_COMMAS:
                raise _damaged(path, f"its header has more than {_MOST_COMMAS} values")
            header = json.loads(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ConfigError:  # which is a ValueError
        raise
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header is not valid JSON: {error}") from error
    start = LENGTH_BYTES + length
    try:
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        tensors = {name: _tensor(entry, start) for name, entry in entries.items()}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"its header has an invalid entry: {error!r:.200}") from error
    end = max((tensor.begin + tensor.num_bytes for tensor in tensors.values()), default=start)
    if end != size:
        raise _damaged(path, f"it has {size} bytes, and its header means {end}")
    return tensors


def _tensor(entry: Any, start: int) -> Tensor:
    shape, (begin, end), dtype = entry["shape"], entry["data_offsets"], str(entry["dtype"])
    if not all(isinstance(number, int) and number >= 0 for number in (*shape, begin, end - begin)):
        raise ValueError(entry)
    if dtype in _DTYPES and prod(shape) * _DTYPES[dtype].itemsize != end - begin:
        raise ValueError(entry)
    return Tensor(dtype, tuple(shape), start + begin, end - begin)


def _damaged(path: Path, reason: str) -> ConfigError:
    return ConfigError(f"{path} is not a complete safetensors file: {reason}")
