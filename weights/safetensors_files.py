"""Read the safetensors files of a Hugging Face directory: headers, and tensors without copies. Host only, no jax.

A file begins with the length of its header, 8 bytes in little endian, and the header: JSON with the dtype, the shape
and the place of each tensor. https://huggingface.co/docs/safetensors/index#format
"""

import json
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxgen.core.errors import ConfigError
from jaxgen.weights.files import gguf_hint, member, read_json
from jaxgen.weights.tensors import Array

logger = logging.getLogger(__name__)

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000
"""The bound of safetensors itself."""
_SMALL = 1 << 16
"""Bytes of tensors that are read: a page fault of a mapped file would read more around them."""
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_NUMBERED = re.compile(r"model-\d{5}-of-(\d{5})\.safetensors")
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
    """The tensors of all safetensors files of a directory, by name.

    Raises ConfigError that names the file which is missing, cut off or damaged.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        names, listed = files_of(directory)
        headers = {name: read_header(member(directory, name)) for name in names}
        file_of = listed or {tensor: name for name, tensors in headers.items() for tensor in tensors}
        cut = len(wrapping_of(file_of))
        self._file_of = {tensor[cut:]: name for tensor, name in file_of.items()}
        self._headers = {name: {tensor[cut:]: one for tensor, one in of.items()} for name, of in headers.items()}
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
        found = self._headers[self._file_of[name]].get(name)
        if found is None:
            raise ConfigError(f"{self.file_of(name)}: the tensor {name} is missing, but {INDEX} says it is there")
        return found

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


def files_of(directory: Path) -> tuple[list[str], dict[str, str]]:
    """Return the names of a directory's files of weights, and the file of each tensor if an index says it.

    An index is used if all its files are there; a single file next to it is a leftover. Without an index, a whole set
    of numbered files is used. Raises ConfigError.
    """
    single, indexed = member(directory, SINGLE).exists(), member(directory, INDEX).exists()
    listed = weight_map(directory) if indexed else {}
    names = sorted(set(listed.values()))
    if indexed and not (single and any(not member(directory, name).exists() for name in names)):
        if single and SINGLE not in names:
            logger.warning("%s: %s is not read, since %s lists other files", directory, SINGLE, INDEX)
        return names, listed
    if single:
        return [SINGLE], {}
    numbered = numbered_files(path.name for path in directory.iterdir())
    if not numbered:
        raise no_safetensors(directory)
    for name in numbered:
        if not member(directory, name).exists():
            raise ConfigError(
                f"{directory / name} is missing, although other files' names count it: the download is incomplete"
            )
    return numbered, {}


def numbered_files(names: Iterable[str]) -> list[str]:
    """Return the files of a set, model-00001-of-00003.safetensors and so on, if one of a set is among the names.

    All names of the set are returned, including files that are missing.
    """
    found = (match for name in names if (match := _NUMBERED.fullmatch(name)) is not None)
    count = max((int(match[1]) for match in found), default=0)
    return [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def wrapping_of(names: Iterable[str]) -> str:
    """Return what peft, torch.compile or data parallelism wrote before the names of all tensors."""
    rest, cut = list(names), ""
    while rest and (prefix := next((one for one in _WRAPPINGS if all(name.startswith(one) for name in rest)), "")):
        cut += prefix
        rest = [name.removeprefix(prefix) for name in rest]
    return cut


def read_header(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name. Raises ConfigError unless the file ends where they end."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if size < LENGTH_BYTES or length > min(size - LENGTH_BYTES, _MOST_HEADER_BYTES):
                raise _damaged(path, f"a header of {length} bytes does not fit in its {size}")
            header = json.loads(file.read(length))
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing, but {INDEX} names it: the download is incomplete") from None
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
        raise _damaged(path, f"its header has an invalid entry: {error!r}") from error
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


def weight_map(directory: Path) -> dict[str, str]:
    """Return the file of each tensor, by the index of a checkpoint in several files. Raises ConfigError."""
    files = read_json(directory, INDEX).get("weight_map")
    if not isinstance(files, dict) or not files or not all(isinstance(name, str) for name in files.values()):
        raise ConfigError(f"{directory / INDEX}: weight_map must be an object from tensor names to file names")
    return files


def no_safetensors(directory: Path) -> ConfigError:
    """Return the error for a directory without safetensors files."""
    found = sorted(path.name for pattern in _PICKLES for path in directory.glob(pattern))
    if found:
        return ConfigError(
            f"{directory} has its weights in {found[0]}, a pickle, which can run code when it is opened; "
            f"only safetensors files are read: save the model again with safetensors"
        )
    return ConfigError(f"{directory} has no weights: neither {SINGLE} nor {INDEX}{gguf_hint(directory)}")
